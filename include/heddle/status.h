/* Status codes and the per-thread error sentence.
 *
 * Every function that can fail returns a heddle_status. The function that first knows what went wrong writes one
 * sentence (what was asked, what was found, both numbers); heddle_last_error() reads it back. Outputs are written only
 * on HEDDLE_OK. The library never prints, aborts or exits.
 *
 * NULL is refused with HEDDLE_ERR_ARG and a sentence that names function and argument, wherever a header does not say
 * that it is legal: options (the defaults), what _destroy takes, what a comment says may be NULL. Functions that return
 * no status return -1, 0, NULL or "" for it, as their comments say, or do nothing. In a collective creation the other
 * ranks get HEDDLE_ERR_PEER with the sentence at once; of a communicator that is NULL they cannot hear.
 *
 * The compiler warns where a status is not looked at. Where that is on purpose, heddle_ignore says so.
 *
 * Structs that begin with struct_bytes grow from version to version. The caller sets it to the size of the struct in
 * its own header before the call: the _init function of options does, for all others HEDDLE_EMPTY:
 *
 *     heddle_reshard_info info = HEDDLE_EMPTY(heddle_reshard_info);
 *
 * A smaller number is a caller built with an older header: options that it does not know have their defaults, and
 * nothing is written behind its results. A larger one is refused (HEDDLE_ERR_ARG, with both numbers), and so is 0 or
 * whatever else no version of the struct had.
 */
#ifndef HEDDLE_STATUS_H
#define HEDDLE_STATUS_H

#include <heddle/export.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* name, cause */
#define HEDDLE_STATUS_LIST(X)                                                                                          \
    X(OK, "success")                                                                                                   \
    X(ERR_ARG, "an argument is out of its documented range, or buffers overlap")                                       \
    X(ERR_NOMEM, "memory could not be had; the sentence says how many bytes")                                          \
    X(ERR_UNSUPPORTED, "valid, but not available here: the sentence names what is missing")                            \
    X(ERR_LAYOUT, "shape, mesh and layout contradict one another")                                                     \
    X(ERR_PARSE, "a text or a file does not follow its format; the sentence gives the position")                       \
    X(ERR_IO, "a file or a pipe could not be read or written")                                                         \
    X(ERR_MISMATCH, "ranks ask for different things; the sentence names the first rank and field")                     \
    X(ERR_TRANSPORT, "the transport failed")                                                                           \
    X(ERR_PEER, "another rank died or gave up; the sentence names it")                                                 \
    X(ERR_TIMEOUT, "a wait passed its deadline; the sentence names rank, peer and stage")                              \
    X(ERR_DEVICE, "a GPU call failed")                                                                                 \
    X(ERR_INFEASIBLE, "no plan satisfies the constraints; the sentence gives the reason")                              \
    X(ERR_INTERNAL, "a broken invariant inside heddle: please report it")                                              \
    X(ERR_INTERRUPTED, "heddle_comm_options.interrupt asked a wait to end")

typedef enum HEDDLE_CHECKED_TYPE heddle_status {
#define HEDDLE_STATUS_ENUM(name, text) HEDDLE_##name,
    HEDDLE_STATUS_LIST(HEDDLE_STATUS_ENUM)
#undef HEDDLE_STATUS_ENUM
} heddle_status;

/* For a status that nobody needs, as of a clean-up after a failure: heddle_ignore(heddle_comm_abort(comm, why)). */
static inline void heddle_ignore(heddle_status status)
{
    (void)status;
}

/* A struct of this type that is all zero but for its struct_bytes: the value that it begins with. C99, C++11. */
#ifdef __cplusplus
#define HEDDLE_EMPTY(type)                                                                                             \
    [] {                                                                                                               \
        type heddle_empty = type();                                                                                    \
        heddle_empty.struct_bytes = sizeof(type);                                                                      \
        return heddle_empty;                                                                                           \
    }()
#else
#define HEDDLE_EMPTY(type) ((type){.struct_bytes = sizeof(type)})
#endif

/* "HEDDLE_ERR_ARG" for HEDDLE_ERR_ARG; "HEDDLE_UNKNOWN" for a value outside the list. Static storage, any thread. */
HEDDLE_API const char *heddle_status_name(heddle_status status);

/* The sentence of the last failed call of this thread; "" when none has failed. Valid until the next failing call of
 * this thread. One line: control characters, and what is no UTF-8, stand there as \xNN. At most 8 KiB; what another
 * rank or thread has said, and what is said again of an object that failed before, has less room. What is cut ends in
 * "...". */
HEDDLE_API const char *heddle_last_error(void);

/* For programs and extensions that fail in heddle's way: sets the sentence of this thread (printf-like, no newline, cut
 * as above; an argument may be heddle_last_error() itself) and returns `status`, so that a function ends with `return
 * heddle_set_error(HEDDLE_ERR_IO, "...")`. HEDDLE_OK is passed through as any other. */
HEDDLE_CHECKED heddle_status heddle_set_error(heddle_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The size of the public struct called `name` ("heddle_shape") in this library, for bindings that mirror the structs in
 * another language: a number that differs from theirs is a library of another version. 0: heddle/heddle.h has no struct
 * of this name, or NULL. Any thread. */
HEDDLE_API size_t heddle_struct_bytes(const char *name);

#ifdef __cplusplus
}
#endif

#endif
