"""What is trained here, from what, and how."""
