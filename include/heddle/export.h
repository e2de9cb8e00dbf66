/* Symbol visibility. Everything declared HEDDLE_API is exported from libheddle; all else is hidden. */
#ifndef HEDDLE_EXPORT_H
#define HEDDLE_EXPORT_H

#if defined(__GNUC__)
#define HEDDLE_API __attribute__((visibility("default")))
#else
#define HEDDLE_API
#endif

#endif
