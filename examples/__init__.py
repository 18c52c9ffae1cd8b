"""What afterlog does, shown on data that everybody can get."""
