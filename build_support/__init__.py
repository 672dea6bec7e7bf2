"""How the wheel is built: backend.py (PEP 517), torches.py (which torch), native.py (the shared objects)."""
