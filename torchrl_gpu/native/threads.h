// Threads of our own for the kernels.
//
// OpenMP ends a region when all of its threads have arrived, and those that wait spin. Beside a busy process one of
// them may wait for a core for several milliseconds, in each of the ten regions of a step, and what spins meanwhile
// takes the core that it waits for. Here the caller works as well and never waits for a thread that has not begun: it
// takes tasks until none is left, then waits for the tasks that other threads are in the middle of. So a step beside
// busy processes costs about what it costs on one thread, and it needs no OpenMP, which some compilers lack.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#if defined(__x86_64__) && defined(__GLIBC__)  // a library compiled on a new system then loads on older ones as well
__asm__(".symver pthread_create,pthread_create@GLIBC_2.2.5");
__asm__(".symver pthread_sigmask,pthread_sigmask@GLIBC_2.2.5");
__asm__(".symver pthread_detach,pthread_detach@GLIBC_2.2.5");
#endif

// POSIX's own calls, since the C++ library's condition variable has changed its version with GCC 12.
class Guarded {
   public:
    explicit Guarded(pthread_mutex_t& mutex) : mutex_(mutex) { pthread_mutex_lock(&mutex_); }
    ~Guarded() { pthread_mutex_unlock(&mutex_); }

   private:
    pthread_mutex_t& mutex_;
};

class Pool {
   public:
    static constexpr int64_t MOST_WORKERS = 1023;

    // Runs call(work, task) for every task, on the calling thread and up to `helpers` others. False, and nothing is
    // run, while another thread (or this one, from within a task) uses the pool.
    bool run(int64_t tasks, int64_t helpers, void (*call)(const void*, int64_t), const void* work) {
        if (used_.exchange(true, std::memory_order_acquire)) return false;
        grow(std::min(helpers, MOST_WORKERS));
        call_ = call, work_ = work, tasks_ = tasks;
        next_.store(0, std::memory_order_relaxed);
        most_.store(helpers, std::memory_order_relaxed);
        const uint64_t begun = (number(state_.load(std::memory_order_relaxed)) + 1) << NUMBER_AT | OPEN;
        state_.store(begun, std::memory_order_seq_cst);
        if (sleepers_.load(std::memory_order_seq_cst) > 0) {
            const Guarded guarded(mutex_);
            pthread_cond_broadcast(&wake_);
        }
        take_tasks();
        close();
        used_.store(false, std::memory_order_release);
        return true;
    }

   private:
    // The state is one number, so that joining, leaving and closing a job exclude each other: the job's number, whether
    // it is open to join, and how many threads are inside.
    static constexpr int NUMBER_AT = 12;
    static constexpr uint64_t OPEN = 1 << 11, INSIDE = OPEN - 1;
    // Looks of a thread that waits before it sleeps. It offers its core at each, so that they cost other processes
    // nothing; together they last about as long as the Python code between two kernels.
    static constexpr int LOOKS = 300;

    std::atomic<bool> used_{false};
    std::atomic<uint64_t> state_{0};
    std::atomic<int64_t> next_{0}, most_{0};
    int64_t workers_ = 0, tasks_ = 0;
    void (*call_)(const void*, int64_t) = nullptr;
    const void* work_ = nullptr;
    std::atomic<int64_t> sleepers_{0};
    pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t wake_ = PTHREAD_COND_INITIALIZER, empty_ = PTHREAD_COND_INITIALIZER;

    static uint64_t number(uint64_t state) { return state >> NUMBER_AT; }

    static void look_away() {
        for (int i = 0; i < 16; i++) {
#if defined(__x86_64__) || defined(__i386__)
            __builtin_ia32_pause();
#elif defined(__aarch64__)
            asm volatile("yield");
#endif
        }
        sched_yield();
    }

    void take_tasks() {
        for (int64_t task; (task = next_.fetch_add(1, std::memory_order_relaxed)) < tasks_;) call_(work_, task);
    }

    // Lets no thread begin any more, and waits for those inside.
    void close() {
        uint64_t state = state_.fetch_and(~OPEN, std::memory_order_acq_rel);
        for (int look = 0; (state & INSIDE) && look < LOOKS; look++) {
            look_away();
            state = state_.load(std::memory_order_acquire);
        }
        if (!(state & INSIDE)) return;
        const Guarded guarded(mutex_);
        while (state_.load(std::memory_order_acquire) & INSIDE) pthread_cond_wait(&empty_, &mutex_);
    }

    bool join(uint64_t state) {
        while ((state & OPEN) && int64_t(state & INSIDE) < most_.load(std::memory_order_relaxed))
            if (state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) return true;
        return false;
    }

    void leave() {
        const uint64_t before = state_.fetch_sub(1, std::memory_order_acq_rel);
        if ((before & OPEN) || (before & INSIDE) != 1) return;
        const Guarded guarded(mutex_);
        pthread_cond_signal(&empty_);
    }

    void work() {
        uint64_t seen = 0;
        for (;;) {
            uint64_t state = state_.load(std::memory_order_acquire);
            for (int look = 0; number(state) == seen && look < LOOKS; look++) {
                look_away();
                state = state_.load(std::memory_order_acquire);
            }
            if (number(state) == seen) state = sleep(seen);
            seen = number(state);
            if (!join(state)) continue;
            take_tasks();
            leave();
        }
    }

    // Waits for a job after `seen`; its state.
    uint64_t sleep(uint64_t seen) {
        const Guarded guarded(mutex_);
        sleepers_.fetch_add(1, std::memory_order_seq_cst);
        while (number(state_.load(std::memory_order_seq_cst)) == seen) pthread_cond_wait(&wake_, &mutex_);
        sleepers_.fetch_sub(1, std::memory_order_relaxed);
        return state_.load(std::memory_order_acquire);
    }

    // Starts threads until there are `wanted`. Where the system gives no more, the others do the work.
    void grow(int64_t wanted) {
        if (workers_ >= wanted) return;
        // Signals are for Python's threads: one that a worker took would not interrupt what they wait for.
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        const auto begin = [](void* of) -> void* {
            static_cast<Pool*>(of)->work();
            return nullptr;
        };
        for (pthread_t made; workers_ < wanted && pthread_create(&made, nullptr, begin, this) == 0; workers_++)
            pthread_detach(made);
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
};

// The pool of this process. It is never destroyed, since its threads may look at it until the process ends, and a forked
// child, which has none of the threads, makes another one.
inline Pool& pool() {
    static std::atomic<Pool*> current{nullptr};
    static const int forks = pthread_atfork(nullptr, nullptr, [] { current.store(nullptr); });
    (void)forks;
    Pool* found = current.load(std::memory_order_acquire);
    if (found) return *found;
    Pool* fresh = new Pool;
    if (current.compare_exchange_strong(found, fresh, std::memory_order_acq_rel)) return *fresh;
    delete fresh;
    return *found;
}

// Runs `work(task)` for every task; tasks are handed out in order, so that neighbours share a cache.
template <class Work>
void spread(int64_t tasks, int64_t threads, const Work& work) {
    const auto call = [](const void* given, int64_t task) { (*static_cast<const Work*>(given))(task); };
    const int64_t helpers = std::min(threads, tasks) - 1;
    if (helpers >= 1 && pool().run(tasks, helpers, call, &work)) return;
    for (int64_t task = 0; task < tasks; task++) work(task);
}
