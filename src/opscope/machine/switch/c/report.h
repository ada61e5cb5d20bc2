/* The file in which a switch library counts what it did. It is mapped and shared, so that what was counted is there
 * when the process dies, and can be read while it runs. opscope/machine/switch/report.py reads it. */
#ifndef OPSCOPE_SWITCH_REPORT_H
#define OPSCOPE_SWITCH_REPORT_H

#include <stdint.h>

enum { MOST_LIBRARIES = 64, MOST_ROWS = 64 };

/* Why a library could not be switched. */
enum {
  PROBLEM_NONE = 0,
  PROBLEM_OTHER_BYTES = 1,    /* a site does not hold the instruction that the file has there */
  PROBLEM_NOT_WRITABLE = 2,   /* the system does not let its code be changed; errno in detail */
  PROBLEM_OTHER_HANDLER = 3,  /* another handler of SIGILL took the place of ours */
  PROBLEM_NOT_RESTORED = 4,   /* the protection of its code could not be restored; errno in detail */
  PROBLEM_OTHER_PROCESS = 5,  /* a second process loaded a library of the same run */
  PROBLEM_HANDLER_REFUSED = 6 /* the system does not let SIGILL be handled; errno in detail */
};

struct row_report {
  uint32_t cleared; /* bits that were set in an answer, and were cleared */
  uint32_t unused;
  uint64_t count; /* answers in which some were */
};

struct library_report {
  uint32_t loaded;  /* times that it was loaded */
  uint32_t sites;   /* places that were switched */
  uint32_t problem;
  int32_t detail;
  uint32_t executed; /* places that were switched and asked at least once */
  uint32_t unused;
  uint64_t executions; /* questions that it asked */
  uint64_t masked;     /* questions that were answered with fewer features */
  struct row_report row[MOST_ROWS];
};

struct report {
  char magic[8];
  uint32_t size; /* of this struct */
  uint32_t process;
  uint32_t libraries;
  uint32_t rows;
  struct library_report library[MOST_LIBRARIES];
};

#define REPORT_MAGIC "opswtch2"

#endif
