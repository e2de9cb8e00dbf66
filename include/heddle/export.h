/* Marks of the functions that these headers declare. Everything marked HEDDLE_API or HEDDLE_CHECKED is exported from
 * libheddle; all else is hidden. HEDDLE_CHECKED is a function whose status has to be looked at: the compiler warns
 * where it is not (heddle_ignore of heddle/status.h says that this is on purpose). */
#ifndef HEDDLE_EXPORT_H
#define HEDDLE_EXPORT_H

#if defined(__GNUC__)
#define HEDDLE_API __attribute__((visibility("default")))
#else
#define HEDDLE_API
#endif

/* HEDDLE_CHECKED_TYPE: the same said of a type, where the language or the compiler can, which also serves functions of
 * other libraries and pointers to functions. */
#if (defined(__cplusplus) && __cplusplus >= 201703L) || (defined(__STDC_VERSION__) && __STDC_VERSION__ >= 202311L)
#define HEDDLE_CHECKED_TYPE [[nodiscard]]
#define HEDDLE_CHECKED HEDDLE_API
#elif defined(__clang__)
#define HEDDLE_CHECKED_TYPE __attribute__((warn_unused_result))
#define HEDDLE_CHECKED HEDDLE_API
#elif defined(__GNUC__)
#define HEDDLE_CHECKED_TYPE
#define HEDDLE_CHECKED HEDDLE_API __attribute__((warn_unused_result))
#else
#define HEDDLE_CHECKED_TYPE
#define HEDDLE_CHECKED HEDDLE_API
#endif

#endif
