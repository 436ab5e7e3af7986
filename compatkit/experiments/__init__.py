"""Every table of the papers by one command; its subpackages hold what makes, keeps and judges them."""
