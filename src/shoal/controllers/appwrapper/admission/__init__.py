"""Before an AppWrapper is stored: `webhook` judges and stamps it, and asks what its creator may create."""
