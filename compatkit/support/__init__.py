"""What every wing uses and no paper is about: the hub, exact intervals, lazy names."""
