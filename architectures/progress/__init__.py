"""How far a long loop is, how long it will take yet, and how much of the processor it was refused. No torch."""
