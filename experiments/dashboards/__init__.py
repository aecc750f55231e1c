"""What W&B is shown of the local record, and the process that shows it beside a sweep."""
