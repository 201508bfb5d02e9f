#include "decoder/run.h"
#include "kernels/backend.h"

int main(int argc, char** argv) {
  return selfsame::decoder::RunDecoder(argc, argv, selfsame::CreateOps);
}
