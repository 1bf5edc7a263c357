"""Log streams on disk: appended, paged, searched, scanned and removed."""
