"""What the notebooks lean on: topology and stand-ins, records of every refusal, reproductions, pictures, reports."""
