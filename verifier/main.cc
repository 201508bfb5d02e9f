#include "verifier/engine/verdict.h"
#include "verifier/run.h"

int main(int argc, char** argv) {
  return selfsame::verifier::RunVerifier(argc, argv, selfsame::verifier::DecideWindow);
}
