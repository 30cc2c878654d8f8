"""What server and devices say to each other, and what it costs."""
