"""Topics that several clusters have: what is appended to one comes to the others."""
