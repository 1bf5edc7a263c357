"""The compiled core of collectives and its slow reference, behind one interface.

`core.NativeCore` calls the shared library by `_door` or ctypes: one build serves every Python.
`reference.ReferenceCore` does the same in plain Python over the same connections, if no library was built, and as an
oracle for tests.
"""
