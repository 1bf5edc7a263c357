"""The compiled core of collectives and the slow reference core, behind one interface.

`core.NativeCore` calls the shared library by `_door` or ctypes: one build serves every Python.
`reference.ReferenceCore` does the same in plain Python over the same connections: as a fallback if no library was
built, and as an oracle for tests.
"""
