"""A finished run goes to the hub, whole or not at all."""
