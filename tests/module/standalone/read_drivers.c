// Reads tables of drivers' faults, each in memory of its exact size, so that sanitizers notice an
// access outside of it.
//
//   read_drivers FILE   each text follows its size in 32 bits.  The output has a line for each: the
//                       status and what is avoided.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver_faults.h"

int main(int count, char** arguments) {
  FILE* const file = count > 1 ? fopen(arguments[1], "rb") : NULL;
  if (!file) return 2;
  uint32_t bytes;
  while (fread(&bytes, sizeof(bytes), 1, file) == 1) {
    char* const text = malloc(bytes + 1u);
    if (fread(text, 1, bytes, file) != bytes) return 1;
    text[bytes] = 0;
    tvmflow_model* const m = calloc(1, sizeof(*m));
    m->backend = TVMFLOW_OPENCL;
    strcpy(m->device.name, "Fake GPU");
    strcpy(m->device.driver, "Compiler E031.38.02");
    const tvmflow_status status = tf_faults_find(m, text);
    printf("%d %u\n", (int)status, m->avoided);
    free(m->faults);
    free(m);
    free(text);
  }
  fclose(file);
  return 0;
}
