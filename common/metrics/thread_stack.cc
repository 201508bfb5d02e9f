#include "common/metrics/thread_stack.h"

#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <cerrno>

namespace selfsame {

void UseMinThreadStack() {}

}  // namespace selfsame

extern "C" int pthread_attr_setstacksize(pthread_attr_t* attributes, size_t size_bytes) noexcept {
  using Function = int (*)(pthread_attr_t*, size_t);
  static const auto next =
      reinterpret_cast<Function>(dlsym(RTLD_NEXT, "pthread_attr_setstacksize"));
  if (next == nullptr) return EINVAL;
  return next(attributes, std::max(size_bytes, selfsame::kMinThreadStackBytes));
}
