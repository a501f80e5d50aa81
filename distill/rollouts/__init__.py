"""Answers written anew while a student trains: by the student, or by student and teacher token by token."""
