"""What a process of ours does when it is interrupted, fails, or has to give memory back."""
