/* The Python face of compiled_walk.h: functions that do not hold the interpreter while they work. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include "compiled_walk.h"

static PyObject *producers_of(const Stretch *stretch)
{
    PyObject *rows = PyTuple_New(stretch->producer_count);
    for (int row = 0; rows != NULL && row < stretch->producer_count; row++) {
        const Producer *producer = &stretch->producers[row];
        PyObject *item = Py_BuildValue("(LLL)", (long long)producer->id, (long long)producer->at, (long long)producer->first_transaction);
        if (item == NULL || PyTuple_SetItem(rows, row, item) < 0)
            Py_CLEAR(rows);
    }
    return rows;
}

PyDoc_STRVAR(pass_batches_doc,
             "pass_batches(buffer, at, end, point, end_offset, last_offset, epoch, collect) -> (at, last_offset, epoch, records, offsets,\n"
             "earliest_ms, latest_ms, first_gap, producers, batches)\n\n"
             "See segments.stretch. Raises ValueError for places outside of the buffer.");

static PyObject *pass_batches(PyObject *module, PyObject *args)
{
    (void)module;
    Py_buffer buffer;
    long long at, end, point, end_offset, last_offset;
    int epoch, collect;
    if (!PyArg_ParseTuple(args, "y*LLLLLip", &buffer, &at, &end, &point, &end_offset, &last_offset, &epoch, &collect))
        return NULL;
    if (at < 0 || at > end || end > buffer.len || last_offset < -1 || last_offset > OFFSET_MAX) {
        PyErr_Format(PyExc_ValueError, "bytes %lld to %lld of %zd, after offset %lld", at, end, buffer.len, last_offset);
        PyBuffer_Release(&buffer);
        return NULL;
    }
    Stretch stretch;
    stretch.at = at;
    stretch.last_offset = last_offset;
    stretch.epoch = epoch;
    Py_BEGIN_ALLOW_THREADS
    walk_batches(&stretch, buffer.buf, end, point, end_offset, collect);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&buffer);
    PyObject *producers = producers_of(&stretch);
    if (producers == NULL)
        return NULL;
    return Py_BuildValue("(LLiLLLLLNL)", (long long)stretch.at, (long long)stretch.last_offset, (int)stretch.epoch,
                         (long long)stretch.records, (long long)stretch.offsets, (long long)stretch.earliest_ms,
                         (long long)stretch.latest_ms, (long long)stretch.first_gap, producers, (long long)stretch.batches);
}

PyDoc_STRVAR(take_frames_doc, "take_frames(frames, at, end, run) -> (at, bytes of run that were filled, batches)\n\n"
                              "See segments.stretch. Raises ValueError for places outside of the buffer.");

PyDoc_STRVAR(take_id_frames_doc, "take_id_frames(frames, at, end, run, first_id) -> (at, bytes of run that were filled, batches)\n\n"
                                 "See segments.stretch. Raises ValueError for places outside of the buffer.");

static PyObject *take(PyObject *args, int with_ids)
{
    Py_buffer frames, run;
    long long from, to, first_id = -1;
    if (with_ids ? !PyArg_ParseTuple(args, "y*LLw*L", &frames, &from, &to, &run, &first_id)
                 : !PyArg_ParseTuple(args, "y*LLw*", &frames, &from, &to, &run))
        return NULL;
    int64_t at = from, filled = 0, count = 0;
    int is_inside = 0 <= from && from <= to && to <= frames.len && (!with_ids || first_id >= 0);
    if (is_inside) {
        Py_BEGIN_ALLOW_THREADS
        count = take_framed(frames.buf, &at, to, run.buf, &filled, run.len, first_id);
        Py_END_ALLOW_THREADS
    } else {
        PyErr_Format(PyExc_ValueError, "bytes %lld to %lld of %zd", from, to, frames.len);
    }
    PyBuffer_Release(&frames);
    PyBuffer_Release(&run);
    return is_inside ? Py_BuildValue("(LLL)", (long long)at, (long long)filled, (long long)count) : NULL;
}

static PyObject *take_frames(PyObject *module, PyObject *args)
{
    (void)module;
    return take(args, 0);
}

static PyObject *take_id_frames(PyObject *module, PyObject *args)
{
    (void)module;
    return take(args, 1);
}

PyDoc_STRVAR(batch_lengths_doc, "batch_lengths(run, at, end, lengths) -> (at, how many)\n\n"
                                "See segments.stretch. Raises ValueError for places outside of the buffer.");

static PyObject *batch_lengths(PyObject *module, PyObject *args)
{
    (void)module;
    Py_buffer run, lengths;
    long long from, to;
    if (!PyArg_ParseTuple(args, "y*LLw*", &run, &from, &to, &lengths))
        return NULL;
    int64_t at = from, count = 0;
    int is_inside = 0 <= from && from <= to && to <= run.len;
    if (is_inside)
        count = batch_lengths_of(run.buf, &at, to, lengths.buf, lengths.len / (Py_ssize_t)sizeof(int32_t));
    else
        PyErr_Format(PyExc_ValueError, "bytes %lld to %lld of %zd", from, to, run.len);
    PyBuffer_Release(&run);
    PyBuffer_Release(&lengths);
    return is_inside ? Py_BuildValue("(LL)", (long long)at, (long long)count) : NULL;
}

PyDoc_STRVAR(put_frames_doc, "put_frames(run, lead, lengths, frames) -> how many bytes of frames were filled\n\n"
                             "See segments.stretch. Raises ValueError for lengths that are not of these bytes.");

PyDoc_STRVAR(put_id_frames_doc, "put_id_frames(run, lead, lengths, frames, first_id) -> how many bytes of frames were filled\n\n"
                                "See segments.stretch. Raises ValueError for lengths that are not of these bytes.");

static PyObject *put(PyObject *args, int with_ids)
{
    Py_buffer run, lengths, frames;
    long long lead, first_id = -1;
    if (with_ids ? !PyArg_ParseTuple(args, "y*Ly*w*L", &run, &lead, &lengths, &frames, &first_id)
                 : !PyArg_ParseTuple(args, "y*Ly*w*", &run, &lead, &lengths, &frames))
        return NULL;
    int64_t filled;
    Py_BEGIN_ALLOW_THREADS
    filled = with_ids && first_id < 0 ? -1
                                      : put_framed(run.buf, run.len, lead, lengths.buf, lengths.len / (Py_ssize_t)sizeof(int32_t),
                                                   frames.buf, frames.len, first_id);
    Py_END_ALLOW_THREADS
    if (filled < 0)
        PyErr_Format(PyExc_ValueError, "%zd lengths after %lld bytes are not those of %zd bytes", lengths.len / 4, lead, run.len);
    PyBuffer_Release(&run);
    PyBuffer_Release(&lengths);
    PyBuffer_Release(&frames);
    return filled < 0 ? NULL : PyLong_FromLongLong((long long)filled);
}

static PyObject *put_frames(PyObject *module, PyObject *args)
{
    (void)module;
    return put(args, 0);
}

static PyObject *put_id_frames(PyObject *module, PyObject *args)
{
    (void)module;
    return put(args, 1);
}

/* -- a segment in pieces ------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    Segment segment;
    int is_stopped; /* or has an update in flight */
} SegmentPass;

static PyObject *new_segment_pass(PyTypeObject *type, PyObject *args, PyObject *named)
{
    long long base_offset, interval_bytes;
    if (named != NULL && PyDict_Size(named)) {
        PyErr_SetString(PyExc_TypeError, "no named arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "LL", &base_offset, &interval_bytes))
        return NULL;
    if (base_offset < 0 || interval_bytes < 0) {
        PyErr_Format(PyExc_ValueError, "base offset %lld, an index entry every %lld bytes", base_offset, interval_bytes);
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    SegmentPass *made = (SegmentPass *)allocate(type, 0);
    if (made != NULL)
        begin_segment(&made->segment, base_offset, interval_bytes);
    return (PyObject *)made;
}

static void delete_segment_pass(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    end_segment(&((SegmentPass *)self)->segment);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

PyDoc_STRVAR(update_doc, "update(piece) -> whether all batches up to its end were sound so far\n\nSee segments.stretch.");

static PyObject *update(PyObject *self, PyObject *piece)
{
    SegmentPass *pass = (SegmentPass *)self;
    Py_buffer buffer;
    if (PyObject_GetBuffer(piece, &buffer, PyBUF_SIMPLE) < 0) /* it may run Python code, so it comes first */
        return NULL;
    if (pass->is_stopped) {
        PyBuffer_Release(&buffer);
        return PyBool_FromLong(0);
    }
    int is_sound;
    pass->is_stopped = 1; /* for another thread */
    Py_BEGIN_ALLOW_THREADS
    is_sound = pass_piece(&pass->segment, buffer.buf, buffer.len);
    Py_END_ALLOW_THREADS
    pass->is_stopped = !is_sound;
    PyBuffer_Release(&buffer);
    return PyBool_FromLong(is_sound);
}

PyDoc_STRVAR(finish_doc, "finish() -> (position, first_offset, last_offset, last_position, records, epochs, offset index, time index)\n\n"
                         "See segments.stretch.");

static PyObject *finish(PyObject *self, PyObject *unused)
{
    (void)unused;
    SegmentPass *pass = (SegmentPass *)self;
    Segment *segment = &pass->segment;
    if (pass->is_stopped)
        Py_RETURN_NONE;
    pass->is_stopped = 1;
    if (!add_time(segment))
        return PyErr_NoMemory();
    PyObject *epochs = PyTuple_New(segment->epoch_count);
    for (int row = 0; epochs != NULL && row < segment->epoch_count; row++) {
        PyObject *epoch = PyLong_FromLong(segment->epochs[row]);
        if (epoch == NULL || PyTuple_SetItem(epochs, row, epoch) < 0)
            Py_CLEAR(epochs);
    }
    if (epochs == NULL)
        return NULL;
    return Py_BuildValue("(LLLLLNy#y#)", (long long)segment->position, (long long)segment->first_offset, (long long)segment->last_offset,
                         (long long)segment->last_position, (long long)segment->records, epochs,
                         segment->offsets.size ? (char *)segment->offsets.bytes : "", (Py_ssize_t)segment->offsets.size,
                         segment->times.size ? (char *)segment->times.bytes : "", (Py_ssize_t)segment->times.size);
}

static PyMethodDef segment_pass_methods[] = {
    {"update", update, METH_O, update_doc},
    {"finish", finish, METH_NOARGS, finish_doc},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(segment_pass_doc, "SegmentPass(base_offset, interval_bytes)\n\nSee segments.stretch. Raises ValueError for negative numbers.");

static PyType_Slot segment_pass_slots[] = {
    {Py_tp_new, new_segment_pass}, {Py_tp_dealloc, delete_segment_pass}, {Py_tp_methods, segment_pass_methods},
    {Py_tp_doc, (void *)segment_pass_doc}, {0, NULL},
};

static PyType_Spec segment_pass_spec = {
    .name = "headwater_core.segments.compiled_walk.SegmentPass",
    .basicsize = sizeof(SegmentPass),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = segment_pass_slots,
};

static PyMethodDef methods[] = {
    {"batch_lengths", batch_lengths, METH_VARARGS, batch_lengths_doc},
    {"put_frames", put_frames, METH_VARARGS, put_frames_doc},
    {"put_id_frames", put_id_frames, METH_VARARGS, put_id_frames_doc},
    {"pass_batches", pass_batches, METH_VARARGS, pass_batches_doc},
    {"take_frames", take_frames, METH_VARARGS, take_frames_doc},
    {"take_id_frames", take_id_frames, METH_VARARGS, take_id_frames_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "headwater_core.segments.compiled_walk", "Record batches, walked by compiled code.", 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_compiled_walk(void)
{
    prepare_crc32c();
    PyObject *module = PyModule_Create(&definition), *segment_pass = module == NULL ? NULL : PyType_FromSpec(&segment_pass_spec);
    if (module != NULL
        && (segment_pass == NULL || PyModule_AddObjectRef(module, "SegmentPass", segment_pass) < 0
            || PyModule_AddIntConstant(module, "VERSION", 5) < 0))
        Py_CLEAR(module);
    Py_XDECREF(segment_pass);
    return module;
}
