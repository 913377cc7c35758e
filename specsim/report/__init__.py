"""What people and programs read: records for JSON, the same records as tables, and plots."""
