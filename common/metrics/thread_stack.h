#pragma once

#include <cstddef>

namespace selfsame {

// CivetWeb asks for thread stacks of 100 KiB. glibc takes a library's static thread-local storage
// out of a thread's stack, and CUDA's libraries have more than that, so that the threads could not
// start. This file defines pthread_attr_setstacksize for the whole process: never less than this.
inline constexpr size_t kMinThreadStackBytes = size_t{1} << 20;

// Refer to it from what needs the definition, so that it is linked in.
void UseMinThreadStack();

}  // namespace selfsame
