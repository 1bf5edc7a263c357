// torch's tensors and options, read through Python's own protocol and passed to the core in one call.
//
// No header of torch is compiled: a tensor is asked for its attributes by name, as Python does, so one build serves
// every torch (docs/adr/0104).
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>

namespace clary {

// What `act` returns, as a number; called without the interpreter lock.
template <typename Act>
PyObject* unlocked(Act act) {
  PyThreadState* state = PyEval_SaveThread();
  const int64_t result = act();
  PyEval_RestoreThread(state);
  return PyLong_FromLongLong(result);
}

// know_tensors(tensor, parameter, strided, dtypes, reductions) -> None. Both types of tensors, the layout of plain
// memory, and two dictionaries: torch's types and the numbers of torch's reductions, each to the core's number.
PyObject* knowTensors(PyObject* module, PyObject* const* given, Py_ssize_t count);

// The next functions return what the C interface returns: 0 when done, a ticket, or a negative failure. They return
// None, with nothing sent, unless each tensor is plain host memory of a type that the core knows: the caller then takes
// the longer way, which copies such a tensor or says what is wrong with it. `options` are torch's: of them `asyncOp`,
// `timeout` and what is named below are read. A timeout below 0 is `default_s`.

// reduce_tensor(communicator, tensors, options, default_s, failure): all_reduce of a list of one, in place; `reduceOp`.
PyObject* reduceTensor(PyObject* module, PyObject* const* given, Py_ssize_t count);

// broadcast_tensor(communicator, tensors, options, default_s, failure): a list of one, in place; `rootRank`.
PyObject* broadcastTensor(PyObject* module, PyObject* const* given, Py_ssize_t count);

// gather_tensor(communicator, output, input, options, size, default_s, failure): `output` has room for `size` inputs.
PyObject* gatherTensor(PyObject* module, PyObject* const* given, Py_ssize_t count);

// scatter_tensor(communicator, output, input, options, size, default_s, failure): reduce_scatter; `reduceOp`.
PyObject* scatterTensor(PyObject* module, PyObject* const* given, Py_ssize_t count);

}  // namespace clary
