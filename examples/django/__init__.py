"""A site that reminds people: Django, its database, and tasks that wait in a folder. Begin with `views`."""
