"""What every package uses and no paper is about: the hub, exact intervals and tests, hashes, files, pictures, lazy names."""
