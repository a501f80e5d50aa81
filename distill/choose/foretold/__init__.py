"""What is known of shapes before any is trained: floors of a device, and a law of trainings made before."""
