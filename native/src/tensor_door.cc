#include "tensor_door.hpp"

#include <cstdint>

#include "clary/collectives.h"

namespace clary {
namespace {

// A reference that this owns; nullptr after a failed call.
class Owned {
 public:
  explicit Owned(PyObject* object) : object_(object) {}
  ~Owned() { Py_XDECREF(object_); }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  PyObject* get() const { return object_; }
  bool is(PyObject* other) const { return object_ == other; }

 private:
  PyObject* object_;
};

// What `know_tensors` was given, and the names that are asked for; held until the process ends.
struct Known {
  PyObject* tensor = nullptr;
  PyObject* parameter = nullptr;
  PyObject* strided = nullptr;
  PyObject* dtypes = nullptr;
  PyObject* reductions = nullptr;
  PyObject* isCpu = PyUnicode_InternFromString("is_cpu");
  PyObject* layout = PyUnicode_InternFromString("layout");
  PyObject* isContiguous = PyUnicode_InternFromString("is_contiguous");
  PyObject* dtype = PyUnicode_InternFromString("dtype");
  PyObject* numel = PyUnicode_InternFromString("numel");
  PyObject* dataPtr = PyUnicode_InternFromString("data_ptr");
  PyObject* reduceOp = PyUnicode_InternFromString("reduceOp");
  PyObject* rootRank = PyUnicode_InternFromString("rootRank");
  PyObject* asyncOp = PyUnicode_InternFromString("asyncOp");
  PyObject* timeout = PyUnicode_InternFromString("timeout");
  PyObject* days = PyUnicode_InternFromString("days");
  PyObject* totalSeconds = PyUnicode_InternFromString("total_seconds");
};

Known& known() {
  static Known all;
  return all;
}

PyObject* askTensor(PyObject* tensor, PyObject* name) { return PyObject_CallMethodObjArgs(tensor, name, nullptr); }

// The number that a dictionary has for a key; -1 without one.
int32_t numberIn(PyObject* numbers, PyObject* key) {
  PyObject* number = PyDict_GetItemWithError(numbers, key);  // borrowed
  return number == nullptr ? -1 : static_cast<int32_t>(PyLong_AsLong(number));
}

struct TensorMemory {
  // A tensor's memory; `isPlain` is false for a tensor that only Python code can judge, or after an error.
  explicit TensorMemory(PyObject* tensor) {
    const Known& names = known();
    auto* type = reinterpret_cast<PyObject*>(Py_TYPE(tensor));
    if (type != names.tensor && type != names.parameter) return;  // subclasses answer for themselves
    if (!Owned(PyObject_GetAttr(tensor, names.isCpu)).is(Py_True)) return;
    if (!Owned(PyObject_GetAttr(tensor, names.layout)).is(names.strided)) return;
    if (!Owned(askTensor(tensor, names.isContiguous)).is(Py_True)) return;
    const Owned type_of_elements(PyObject_GetAttr(tensor, names.dtype));
    if (type_of_elements.get() == nullptr) return;
    dtype = numberIn(names.dtypes, type_of_elements.get());
    const Owned elements(askTensor(tensor, names.numel));
    const Owned where(askTensor(tensor, names.dataPtr));
    if (dtype < 0 || elements.get() == nullptr || where.get() == nullptr) return;
    count = PyLong_AsUnsignedLongLong(elements.get());
    address = PyLong_AsVoidPtr(where.get());
    isPlain = PyErr_Occurred() == nullptr;
  }

  bool isPlain = false;
  int32_t dtype = -1;
  uint64_t count = 0;
  void* address = nullptr;
};

// What every call takes besides its tensors.
struct Asked {
  Asked(PyObject* communicatorGiven, PyObject* options, PyObject* defaultSeconds, PyObject* failureGiven)
      : communicator(static_cast<clary_communicator*>(PyLong_AsVoidPtr(communicatorGiven))),
        failure(static_cast<clary_failure*>(PyLong_AsVoidPtr(failureGiven))) {
    if (PyErr_Occurred() != nullptr) return;
    const Known& names = known();
    const Owned isAsync(PyObject_GetAttr(options, names.asyncOp));
    const Owned limit(PyObject_GetAttr(options, names.timeout));
    if (isAsync.get() == nullptr || limit.get() == nullptr) return;
    const Owned days(PyObject_GetAttr(limit.get(), names.days));
    if (days.get() == nullptr) return;
    if (PyLong_AsLong(days.get()) < 0) {
      seconds = PyFloat_AsDouble(defaultSeconds);
    } else {
      const Owned total(askTensor(limit.get(), names.totalSeconds));
      if (total.get() == nullptr) return;
      seconds = PyFloat_AsDouble(total.get());
    }
    asynchronous = isAsync.is(Py_True) ? 1 : 0;
  }

  clary_communicator* communicator;
  clary_failure* failure;
  int32_t asynchronous = 0;
  double seconds = 0;
};

// The core's number of `options.reduceOp`; -1 for one that the core does not know, or after an error.
int32_t reductionOf(PyObject* options) {
  const Owned op(PyObject_GetAttr(options, known().reduceOp));
  if (op.get() == nullptr) return -1;
  const Py_hash_t torchs = PyObject_Hash(op.get());  // is its number
  if (PyErr_Occurred() != nullptr) return -1;
  const Owned number(PyLong_FromSsize_t(torchs));
  return number.get() == nullptr ? -1 : numberIn(known().reductions, number.get());
}

// None for the caller who takes the longer way, or nullptr after an error.
PyObject* notHere() { return PyErr_Occurred() != nullptr ? nullptr : Py_NewRef(Py_None); }

bool hasCount(Py_ssize_t count, Py_ssize_t wanted) {
  if (known().tensor == nullptr) {
    PyErr_SetString(PyExc_RuntimeError, "know_tensors was not called");
    return false;
  }
  if (count != wanted) PyErr_Format(PyExc_TypeError, "expected %zd arguments, got %zd", wanted, count);
  return count == wanted;
}

// A new reference to the tensor of a list of one, because another thread may empty the list meanwhile; nullptr for any
// other object.
PyObject* singleOf(PyObject* tensors) {
  const bool isSingle = PyList_CheckExact(tensors) && PyList_Size(tensors) == 1;
  return isSingle ? Py_NewRef(PyList_GetItem(tensors, 0)) : nullptr;
}

}  // namespace

PyObject* knowTensors(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 5) return PyErr_Format(PyExc_TypeError, "expected 5 arguments, got %zd", count);
  if (!PyDict_Check(given[3]) || !PyDict_Check(given[4])) {
    return PyErr_Format(PyExc_TypeError, "expected two dictionaries of numbers");
  }
  Known& names = known();
  PyObject** places[] = {&names.tensor, &names.parameter, &names.strided, &names.dtypes, &names.reductions};
  for (int place = 0; place < 5; ++place) {
    PyObject* before = *places[place];
    *places[place] = Py_NewRef(given[place]);
    Py_XDECREF(before);
  }
  Py_RETURN_NONE;
}

PyObject* reduceTensor(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (!hasCount(count, 5)) return nullptr;
  const Owned tensor(singleOf(given[1]));
  if (tensor.get() == nullptr) return notHere();
  const TensorMemory memory(tensor.get());
  if (!memory.isPlain) return notHere();
  const int32_t op = reductionOf(given[2]);
  const Asked asked(given[0], given[2], given[3], given[4]);
  if (op < 0 || PyErr_Occurred() != nullptr) return notHere();
  return unlocked([&] {
    return clary_all_reduce(asked.communicator, memory.address, memory.address, memory.count, memory.dtype, op,
                            asked.asynchronous, asked.seconds, asked.failure);
  });
}

PyObject* broadcastTensor(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (!hasCount(count, 5)) return nullptr;
  const Owned tensor(singleOf(given[1]));
  if (tensor.get() == nullptr) return notHere();
  const TensorMemory memory(tensor.get());
  if (!memory.isPlain) return notHere();
  const Owned root(PyObject_GetAttr(given[2], known().rootRank));
  if (root.get() == nullptr) return nullptr;
  const auto rank = static_cast<int32_t>(PyLong_AsLong(root.get()));
  const Asked asked(given[0], given[2], given[3], given[4]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  return unlocked([&] {
    return clary_broadcast(asked.communicator, memory.address, memory.count, memory.dtype, rank, asked.asynchronous,
                           asked.seconds, asked.failure);
  });
}

PyObject* gatherTensor(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (!hasCount(count, 7)) return nullptr;
  const TensorMemory whole(given[1]);
  if (!whole.isPlain) return notHere();
  const TensorMemory part(given[2]);
  if (!part.isPlain || part.dtype != whole.dtype) return notHere();
  const uint64_t size = PyLong_AsUnsignedLongLong(given[4]);
  const Asked asked(given[0], given[3], given[5], given[6]);
  if (PyErr_Occurred() != nullptr || whole.count != part.count * size) return notHere();
  return unlocked([&] {
    return clary_all_gather(asked.communicator, part.address, whole.address, nullptr, part.count, part.dtype,
                            asked.asynchronous, asked.seconds, asked.failure);
  });
}

PyObject* scatterTensor(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (!hasCount(count, 7)) return nullptr;
  const TensorMemory part(given[1]);
  if (!part.isPlain) return notHere();
  const TensorMemory whole(given[2]);
  if (!whole.isPlain || part.dtype != whole.dtype) return notHere();
  const int32_t op = reductionOf(given[3]);
  const uint64_t size = PyLong_AsUnsignedLongLong(given[4]);
  const Asked asked(given[0], given[3], given[5], given[6]);
  if (op < 0 || PyErr_Occurred() != nullptr || whole.count != part.count * size) return notHere();
  return unlocked([&] {
    return clary_reduce_scatter(asked.communicator, whole.address, nullptr, part.address, part.count, part.dtype, op,
                                asked.asynchronous, asked.seconds, asked.failure);
  });
}

}  // namespace clary
