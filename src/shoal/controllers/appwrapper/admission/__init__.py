"""Before an AppWrapper is stored: `webhook` judges and stamps it, `rights` asks what its creator may create."""
