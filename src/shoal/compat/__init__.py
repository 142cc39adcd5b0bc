"""Other people's names for what Shoal does, for those who move. Nothing is imported here."""
