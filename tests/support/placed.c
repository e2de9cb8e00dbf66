#include "placed.h"

_Thread_local heddle_stream placed_stream = HEDDLE_NO_STREAM;
_Thread_local placed_memory placed_store;
