// What the native runners of all runtimes share: flags, the answer, files, what the processor says of itself, the
// process, stopwatches, and the loop of calls. The one source file of a runner includes it, says which flags it has
// beside the shared ones, and ends with `answer_request`. Runners are not to fail by a library that the runtime lacks,
// so this needs the C++ library alone.
#ifndef OPSCOPE_NATIVE_RUNNER_H
#define OPSCOPE_NATIVE_RUNNER_H

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <link.h>
#include <sched.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#endif
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace {

// Exit codes: an answer with a result, an answer with an error, no answer because it cannot be written.
constexpr int kDone = 0, kFailed = 1, kUsage = 2, kNoRoom = 9;

// Why there is no result. Kinds: "mask" features cannot be proved off, "storage" a file cannot be written, "exit".
struct Failure {
  std::string kind;
  std::string message;
};

[[noreturn]] void fail(const std::string& message, const char* kind = "exit") {
  throw Failure{kind, message};
}

int64_t clock_now(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return int64_t{time.tv_sec} * 1000000000 + time.tv_nsec;
}

#ifdef __APPLE__
// CLOCK_MONOTONIC has steps of a microsecond there.
constexpr clockid_t kClock = CLOCK_UPTIME_RAW;
#else
constexpr clockid_t kClock = CLOCK_MONOTONIC;
#endif

int64_t now() { return clock_now(kClock); }

// ---- flags


using Flags = std::map<std::string, std::string>;

const Flags kShared = {
    {"num_executions", "inferences to measure; default 1"},
    {"cpu_threads", "threads that the runtime may use; default: its choice"},
    {"input_file", "the inputs' raw bytes are in NAME-0.bin, NAME-1.bin, ..."},
    {"output_file", "the outputs of the last inference go to NAME-0.bin, NAME-1.bin, ..."},
    {"warmup", "inferences before the measured ones; default 0"},
    {"cpu_affinity", "processors to stay on, 0,1,..."},
    {"spawned_ns", "the runner's clock when this process was asked for"},
    {"answer_path", "where to write the result (JSON)"},
    {"describe", "1: only tell the program's inputs"},
    {"probe", "1: only tell what the processor says of itself"},
    {"cpuid_leaves", "with --probe on x86-64: leaves of CPUID to tell, LEAF/SUBLEAF,..."},
};

// Those of this runner alone, which its own source file gives; they stand before shared ones of the same name.
const Flags& own_flags();

Flags known_flags() {
  Flags all = own_flags();
  all.insert(kShared.begin(), kShared.end());
  return all;
}

[[noreturn]] void usage(const std::string& problem) {
  if (!problem.empty()) fprintf(stderr, "%s\n", problem.c_str());
  for (const auto& [name, meaning] : known_flags()) fprintf(stderr, "  --%s=...  %s\n", name.c_str(), meaning.c_str());
  exit(problem.empty() ? kDone : kUsage);
}

// --name=value, --name value, and one dash for two, as gflags takes them.
Flags parse(int count, char** words) {
  const Flags known = known_flags();
  Flags flags;
  for (int i = 1; i < count; ++i) {
    std::string word = words[i];
    const size_t dashes = word.find_first_not_of('-');
    if (dashes == std::string::npos || dashes == 0 || dashes > 2) usage("not a flag: " + word);
    word.erase(0, dashes);
    if (word == "help") usage("");
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    if (!known.count(name)) usage("unknown flag: --" + name);
    if (equals == std::string::npos && i + 1 == count) usage("--" + name + " needs a value");
    flags[name] = equals == std::string::npos ? words[++i] : word.substr(equals + 1);
  }
  return flags;
}

std::string text(const Flags& flags, const char* name) {
  const auto found = flags.find(name);
  return found == flags.end() ? "" : found->second;
}

int64_t number(const std::string& digits, const std::string& name) {
  char* end = nullptr;
  const int64_t value = strtoll(digits.c_str(), &end, 10);
  if (digits.empty() || *end != '\0') usage("--" + name + " needs a number, not '" + digits + "'");
  return value;
}

int64_t number(const Flags& flags, const char* name, int64_t otherwise) {
  return flags.count(name) ? number(text(flags, name), name) : otherwise;
}

std::vector<std::string> split(const std::string& all, char separator) {
  std::vector<std::string> parts;
  for (size_t from = 0; from < all.size();) {
    const size_t end = std::min(all.find(separator, from), all.size());
    parts.push_back(all.substr(from, end - from));
    from = end + 1;
  }
  return parts;
}

std::vector<std::string> list(const Flags& flags, const char* name, char separator = ',') {
  return split(text(flags, name), separator);
}

// Sizes as 2x8 of a flag; none for "-".
template <typename Size>
std::vector<Size> parse_sizes(const std::string& word, const char* name) {
  std::vector<Size> sizes;
  for (const auto& part : split(word == "-" ? "" : word, 'x')) sizes.push_back(static_cast<Size>(number(part, name)));
  return sizes;
}

// What is called in turn: each key once, in the order in which it comes first, and for each call the place of its key.
template <typename Key>
struct Turns {
  std::vector<Key> keys;
  std::vector<size_t> order;

  explicit Turns(const std::vector<Key>& calls) {
    for (const auto& call : calls) {
      order.push_back(std::find(keys.begin(), keys.end(), call) - keys.begin());
      if (order.back() == keys.size()) keys.push_back(call);
    }
  }

  size_t place(size_t number) const { return order[number % order.size()]; }
};

// ---- JSON

// Bytes of the UTF-8 character at a place; 0 where there is none.
size_t character_at(const std::string& raw, size_t at) {
  const auto first = static_cast<unsigned char>(raw[at]);
  const size_t size = first < 0x80 ? 1 : first >= 0xc2 && first < 0xe0 ? 2 : (first & 0xf0) == 0xe0 ? 3 : 4;
  if ((size == 4 && (first < 0xf0 || first > 0xf4)) || at + size > raw.size()) return 0;
  for (size_t i = 1; i < size; ++i) {
    if ((static_cast<unsigned char>(raw[at + i]) & 0xc0) != 0x80) return 0;
  }
  return size;
}

// What is no UTF-8 becomes a question mark: the answer has to be read whatever a library calls its events.
std::string quoted(const std::string& raw) {
  std::string out = "\"";
  for (size_t at = 0, size = 0; at < raw.size(); at += std::max<size_t>(size, 1)) {
    const auto c = static_cast<unsigned char>(raw[at]);
    size = character_at(raw, at);
    char escape[8];
    if (c == '"' || c == '\\') {
      out += {'\\', static_cast<char>(c)};
    } else if (c < 0x20) {
      snprintf(escape, sizeof escape, "\\u%04x", c);
      out += escape;
    } else {
      out += size == 0 ? "?" : raw.substr(at, size);
    }
  }
  return out + "\"";
}

std::string json(const std::string& value) { return quoted(value); }
std::string json(int64_t value) { return std::to_string(value); }

template <typename Sequence>
std::string json_array(const Sequence& values) {
  std::string out;
  for (const auto& value : values) out += (out.empty() ? "" : ",") + json(value);
  return "[" + out + "]";
}

// Members of the answer, already encoded.
class Answer {
 public:
  void set(const char* name, const std::string& encoded) { members_[name] = encoded; }

  std::string encode() const {
    std::string out;
    for (const auto& [name, value] : members_) out += (out.empty() ? "" : ",") + quoted(name) + ":" + value;
    return "{" + out + "}\n";
  }

 private:
  std::map<std::string, std::string> members_;
};

// ---- files

// Under another name until it is whole: a reader never meets half a file.
void write_file(const std::string& path, const void* data, size_t size) {
  const std::string part = path + ".part";
  FILE* file = fopen(part.c_str(), "wb");
  bool whole = file != nullptr && fwrite(data, 1, size, file) == size;
  int reason = whole ? 0 : errno;
  if (file != nullptr && fclose(file) != 0 && whole) whole = false, reason = errno;
  if (whole && rename(part.c_str(), path.c_str()) != 0) whole = false, reason = errno;
  if (whole) return;
  unlink(part.c_str());
  fail(path + ": cannot be written: " + strerror(reason), "storage");
}

void read_exactly(const std::string& path, uint8_t* into, size_t size) {
  FILE* file = fopen(path.c_str(), "rb");
  if (file == nullptr) fail(path + ": cannot be read: " + strerror(errno));
  const size_t got = fread(into, 1, size, file);
  const bool more = fgetc(file) != EOF;
  fclose(file);
  if (got != size || more) fail(path + ": an input of " + std::to_string(size) + " bytes is needed");
}

// What the processor says of itself, as opscope.machine.cpu_reading describes it. opscope judges it, not this program.
#if defined(__x86_64__)
std::vector<int64_t> cpuid_row(uint32_t leaf, uint32_t subleaf) {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  __cpuid_count(leaf, subleaf, eax, ebx, ecx, edx);
  return {leaf, subleaf, eax, ebx, ecx, edx};
}

std::string xcr0() {
  constexpr uint32_t kOsxsave = 1u << 27;
  if ((static_cast<uint32_t>(cpuid_row(1, 0)[4]) & kOsxsave) == 0) return "null";
  uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return std::to_string((uint64_t{high} << 32) | low);
}

std::string processor(const Flags& flags) {
  const int64_t last = cpuid_row(0, 0)[2], last_extended = cpuid_row(0x80000000u, 0)[2];
  std::string rows;
  for (const auto& pair : list(flags, "cpuid_leaves")) {
    const size_t slash = std::min(pair.find('/'), pair.size());
    const int64_t leaf = number(pair.substr(0, slash), "cpuid_leaves");
    // As cpuinfo does: it asks for leaf 0x24 of every processor that has leaf 7.
    const int64_t needed = leaf == 0x24 ? 7 : leaf;
    if (needed > (leaf < 0x80000000 ? last : last_extended)) continue;
    const int64_t subleaf = number(pair.substr(std::min(slash + 1, pair.size())), "cpuid_leaves");
    rows += (rows.empty() ? "" : ",") + json_array(cpuid_row(leaf, subleaf));
  }
  return "{\"cpuid\":[" + rows + "],\"xcr0\":" + xcr0() + "}";
}
#elif defined(__aarch64__) && defined(__linux__)
// Implementer, variant and part of every core that /proc/cpuinfo names, as in MIDR_EL1.
std::set<int64_t> midrs() {
  const std::map<std::string, int> shifts = {{"CPU implementer", 24}, {"CPU variant", 20}, {"CPU part", 4}};
  std::set<int64_t> found;
  std::ifstream cpuinfo("/proc/cpuinfo");
  int64_t midr = 0;
  for (std::string line; std::getline(cpuinfo, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || colon == 0) continue;
    const auto shift = shifts.find(line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1));
    if (shift == shifts.end()) continue;
    if (shift->second == 24 && midr != 0) found.insert(std::exchange(midr, 0));
    midr |= static_cast<int64_t>(strtoull(line.c_str() + colon + 1, nullptr, 0)) << shift->second;
  }
  if (midr != 0) found.insert(midr);
  return found;
}

std::string processor(const Flags&) {
  return "{\"hwcaps\":[" + std::to_string(getauxval(AT_HWCAP)) + "," + std::to_string(getauxval(AT_HWCAP2)) +
      "],\"midrs\":" + json_array(midrs()) + "}";
}
#else
std::string processor(const Flags&) { return "{}"; }
#endif

void* load_library(const char* name) {
  void* library = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) fail(dlerror());
  return library;
}

// ---- names

using Names = std::vector<std::string>;

std::string joined(const Names& parts) {
  std::string out;
  for (const auto& part : parts) out += (out.empty() ? "" : ",") + part;
  return out;
}

std::string numbered(const std::string& base, size_t index) { return base + "-" + std::to_string(index) + ".bin"; }


// ---- the process

// Of this program alone: what getrusage says on Linux begins with the memory of the process that started this one.
int64_t peak_memory() {
#if defined(__linux__)
  int64_t kib = -1;
  char line[256];
  FILE* status = fopen("/proc/self/status", "r");
  while (status != nullptr && fgets(line, sizeof line, status) != nullptr) {
    if (sscanf(line, "VmHWM: %ld kB", &kib) == 1) break;
  }
  if (status != nullptr) fclose(status);
  if (kib >= 0) return kib * 1024;
#endif
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
#if defined(__APPLE__)
  return usage.ru_maxrss;
#else
  return int64_t{usage.ru_maxrss} * 1024;
#endif
}

void stay_on(const std::vector<std::string>& processors) {
  if (processors.empty()) return;
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const auto& processor : processors) CPU_SET(number(processor, "cpu_affinity"), &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) fail(std::string("cannot pin to CPUs: ") + strerror(errno));
#else
  fail("this system cannot pin a process to CPUs");
#endif
}

void prepare_process() {
#if defined(__linux__)
  // An orphan would disturb the next measurement.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
  // A file that may not grow is an error of the write, not a crash.
  signal(SIGXFSZ, SIG_IGN);
}

// ---- what the system gave and took, as opscope.machine.usage and opscope.machine.usage tell it of Python

// Second column of a thread's schedstat: how long it was ready and waited for a CPU. False where it cannot be read.
bool run_delay(int file, int64_t& waited) {
  char line[64];
  const ssize_t got = pread(file, line, sizeof line - 1, 0);
  if (got <= 0) return false;
  line[got] = '\0';
  long long ran = 0, delayed = 0;
  if (sscanf(line, "%lld %lld", &ran, &delayed) != 2) return false;
  waited = delayed;
  return true;
}

// The schedstat of all threads of this process, open.
std::vector<int> open_schedstats() {
  std::vector<int> files;
  DIR* tasks = opendir("/proc/self/task");
  while (const dirent* task = tasks == nullptr ? nullptr : readdir(tasks)) {
    if (task->d_name[0] == '.') continue;
    const int file = open((std::string("/proc/self/task/") + task->d_name + "/schedstat").c_str(), O_RDONLY | O_CLOEXEC);
    if (file >= 0) files.push_back(file);
  }
  if (tasks != nullptr) closedir(tasks);
  return files;
}

// How long calls were kept off the CPU: with one thread the calls less the thread's CPU time, else the longest that one
// thread waited for a CPU. A reading is a system call, so short calls share one; it belongs to the longest of them.
class OffCpuMeter {
 public:
  explicit OffCpuMeter(int64_t threads) : alone_(threads == 1) {
    if (!alone_) files_ = open_schedstats();
    int64_t waited = 0;
    for (const int file : files_) readable_ = run_delay(file, waited) && readable_;
    known_ = alone_ || (readable_ && !files_.empty());
    int64_t least = INT64_MAX;
    for (int i = 0; known_ && i < 5; ++i) {
      const int64_t began = now();
      read(opened_);
      least = std::min(least, now() - began);
    }
    rest_ = 2 * 200 * least;  // at most half a percent of the calls for both readings
  }

  ~OffCpuMeter() {
    for (const int file : files_) close(file);
  }

  bool known() const { return known_; }

  // Begins to watch; the moment from which on the calls since then may be closed.
  int64_t begin(const std::vector<int64_t>& durations) {
    if (!known_) return INT64_MAX;
    first_ = durations.size();
    read(opened_);
    return now() + rest_;
  }

  void end(const std::vector<int64_t>& durations) {
    if (!known_ || first_ >= durations.size()) return;
    read(closed_);
    off_cpu_.resize(durations.size(), 0);
    const auto from = durations.begin() + first_;
    int64_t lost = 0;
    if (alone_) {
      for (auto one = from; one != durations.end(); ++one) lost += *one;
      lost -= closed_[0] - opened_[0];
    } else {
      for (size_t i = 0; i < closed_.size(); ++i) lost = std::max(lost, closed_[i] - opened_[i]);
    }
    const auto longest = std::max_element(from, durations.end());
    off_cpu_[longest - durations.begin()] = std::max<int64_t>(0, std::min(lost, *longest));
  }

  const std::vector<int64_t>& off_cpu() const { return off_cpu_; }

 private:
  void read(std::vector<int64_t>& into) const {
    into.resize(alone_ ? 1 : files_.size());
    if (alone_) into[0] = clock_now(CLOCK_THREAD_CPUTIME_ID);
    for (size_t i = 0; i < files_.size(); ++i) run_delay(files_[i], into[i]);
  }

  const bool alone_;
  bool known_ = false, readable_ = true;
  std::vector<int> files_;
  std::vector<int64_t> opened_, closed_, off_cpu_;
  size_t first_ = 0;
  int64_t rest_ = 0;
};

// Counters of this process and of its CPUs at one moment; -1 for what the system does not tell.
struct Usage {
  int64_t wall = now(), cpu = clock_now(CLOCK_PROCESS_CPUTIME_ID), thread_cpu = clock_now(CLOCK_THREAD_CPUTIME_ID);
  int64_t run_delay = -1, cpus = -1, busy = -1, steal = -1;
  double megahertz = -1;
  rusage own{};

  Usage() {
    getrusage(RUSAGE_SELF, &own);
#if defined(__linux__)
    for (const int file : open_schedstats()) {
      int64_t waited = 0;
      if (::run_delay(file, waited)) run_delay = std::max<int64_t>(run_delay, 0) + waited;
      close(file);
    }
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) read_cpus(set);
#endif
  }

 private:
#if defined(__linux__)
  void read_cpus(const cpu_set_t& set) {
    cpus = CPU_COUNT(&set);
    const int64_t unit = 1000000000 / sysconf(_SC_CLK_TCK);
    int64_t listed = 0, worked = 0, stolen = 0;
    std::ifstream stat("/proc/stat");
    for (std::string line; std::getline(stat, line);) {
      int number = 0;
      long long user = 0, nice = 0, kernel = 0, idle = 0, wait = 0, irq = 0, soft = 0, steals = 0;
      const int got = sscanf(line.c_str(), "cpu%d %lld %lld %lld %lld %lld %lld %lld %lld", &number, &user, &nice,
          &kernel, &idle, &wait, &irq, &soft, &steals);
      if (got != 9 || number >= CPU_SETSIZE || !CPU_ISSET(number, &set)) continue;
      ++listed;
      worked += user + nice + kernel + irq + soft;
      stolen += steals;
      std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(number) + "/cpufreq/scaling_cur_freq");
      int64_t kilohertz = 0;
      if (file >> kilohertz) megahertz = std::max(megahertz, kilohertz / 1000.0);
    }
    if (listed == cpus) busy = worked * unit, steal = stolen * unit;
  }
#endif
};

std::string difference(int64_t before, int64_t after) {
  return before < 0 || after < 0 ? "null" : json(std::max<int64_t>(after - before, 0));
}

std::string usage_json(const Usage& before, const Usage& after) {
  std::string clocks;
  for (const double clock : {before.megahertz, after.megahertz}) {
    if (clock >= 0) clocks += (clocks.empty() ? "" : ",") + std::to_string(clock);
  }
  return "{\"wall_ns\":" + json(after.wall - before.wall) + ",\"cpu_ns\":" + json(after.cpu - before.cpu) +
      ",\"involuntary_switches\":" + json(int64_t{after.own.ru_nivcsw - before.own.ru_nivcsw}) +
      ",\"voluntary_switches\":" + json(int64_t{after.own.ru_nvcsw - before.own.ru_nvcsw}) +
      ",\"minor_faults\":" + json(int64_t{after.own.ru_minflt - before.own.ru_minflt}) +
      ",\"major_faults\":" + json(int64_t{after.own.ru_majflt - before.own.ru_majflt}) +
      ",\"thread_cpu_ns\":" + json(after.thread_cpu - before.thread_cpu) +
      ",\"run_delay_ns\":" + difference(before.run_delay, after.run_delay) +
      ",\"cpus\":" + (after.cpus < 0 ? "null" : json(after.cpus)) +
      ",\"busy_ns\":" + difference(before.busy, after.busy) + ",\"steal_ns\":" + difference(before.steal, after.steal) +
      ",\"frequency_mhz\":[" + clocks + "]}";
}

// ---- the calls

// Calls a program `count` times more than there are durations already. A step has `prepare(number)`, what comes before a
// call, `call(number)`, the call, and `keep(number, before, after)`, what comes after it; only the call is timed.
template <typename Step>
void infer(Step& step, int64_t count, OffCpuMeter& meter, std::vector<int64_t>& durations) {
  const size_t end = durations.size() + count;
  durations.reserve(end);
  int64_t due = meter.begin(durations);
  while (durations.size() < end) {
    const size_t number = durations.size();
    step.prepare(number);
    const int64_t before = now();
    step.call(number);
    const int64_t after = now();
    durations.push_back(after - before);
    const bool read = after >= due;
    if (read) meter.end(durations);
    step.keep(number, before, after);
    if (read) due = meter.begin(durations);
  }
  meter.end(durations);
}

// When the process was asked for, when the runtime was loaded, and when the program was.
struct Stages {
  int64_t spawned, started, loaded;
};

// The warm-up and the measured calls, told in the answer, and then what writes traces and outputs. The memory is asked
// for before anything is written.
template <typename Step, typename Write>
void measure(Step& step, const Flags& flags, const Stages& stages, Answer& answer, Write write) {
  OffCpuMeter meter(number(flags, "cpu_threads", -1));
  std::vector<int64_t> durations;
  infer(step, number(flags, "warmup", 0), meter, durations);
  const auto first = static_cast<std::ptrdiff_t>(durations.size());
  const Usage began;
  infer(step, number(flags, "num_executions", 1), meter, durations);
  const Usage ended;
  const std::vector<int64_t> wall(durations.begin() + first, durations.end());
  answer.set("peak_rss_bytes", json(peak_memory()));
  answer.set("warmup_ns", json_array(std::vector<int64_t>(durations.begin(), durations.begin() + first)));
  answer.set("wall_ns", json_array(wall));
  answer.set("off_cpu_ns", meter.known() ? json_array(meter.off_cpu()) : "null");
  answer.set("usage", usage_json(began, ended));
  int64_t total = 0;
  for (const int64_t duration : wall) total += duration;
  printf("Model executed successfully %zu time(s) in %f ms.\n", wall.size(), static_cast<double>(total) / 1e6);
  const int64_t measured = now();
  write();
  answer.set("write_ns", json(now() - measured));
  answer.set("start_ns", json(stages.started - stages.spawned));
  answer.set("load_ns", json(stages.loaded - stages.started));
}

// ---- the request

int report(const Answer& answer, const std::string& path, int code) {
  if (path.empty()) return code;
  try {
    const std::string encoded = answer.encode();
    write_file(path, encoded.data(), encoded.size());
  } catch (const Failure& failure) {
    fprintf(stderr, "%s\n", failure.message.c_str());
    return kNoRoom;
  }
  return code;
}


// Serve what the flags ask for; what happened is the answer, and the exit code.
int answer_request(int count, char** words, void (*serve)(const Flags& flags, int64_t spawned, Answer& answer)) {
  const int64_t began = now();
  const Flags flags = parse(count, words);
  const bool probes = number(flags, "probe", 0) != 0;
  if (text(flags, "model_path").empty() && !probes) usage("--model_path is missing");
  Answer answer;
  if (probes) answer.set("processor", processor(flags));
  int code = kDone;
  try {
    prepare_process();
    stay_on(list(flags, "cpu_affinity"));
    serve(flags, number(flags, "spawned_ns", began), answer);
  } catch (const Failure& failure) {
    fprintf(stderr, "%s\n", failure.message.c_str());
    answer.set("error", json(failure.message));
    answer.set("kind", json(failure.kind));
    code = kFailed;
  }
  code = report(answer, text(flags, "answer_path"), code);
  fflush(nullptr);
  // Taking the runtime apart would only cost time.
  _exit(code);
}

}  // namespace

#endif
