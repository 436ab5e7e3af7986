"""Every table of the papers by one command; the wings inside hold what makes, keeps and judges them."""
