"""The experiments of the paper by name: records of each measurement, figures drawn from the records, and claims."""
