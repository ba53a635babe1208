//! A search's contact with its caller: a request to stop, a time limit, progress.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Shared between a running search and whoever waits for it.
#[derive(Debug)]
pub struct Watch {
    stop: AtomicBool,
    late: AtomicBool,
    deadline: Option<Instant>,
    done: AtomicU64,
    all: AtomicU64,
    looks: AtomicU64,
    last_look: u64,
}

impl Watch {
    /// A watch whose time limit, if any, starts now.
    pub fn new(time_limit: Option<Duration>) -> Watch {
        Watch {
            stop: AtomicBool::new(false),
            late: AtomicBool::new(false),
            deadline: time_limit.and_then(|limit| Instant::now().checked_add(limit)),
            done: AtomicU64::new(0),
            all: AtomicU64::new(0),
            looks: AtomicU64::new(0),
            last_look: u64::MAX,
        }
    }

    /// A watch that asks the search to stop at its `n`-th look, from 1 on.
    pub fn stopping_at(n: u64) -> Watch {
        Watch { last_look: n, ..Watch::new(None) }
    }

    /// How often the search has looked whether it must stop.
    pub fn looks(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
    }

    /// Asks the search to return what it has.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Parts of the search done, and all of them; both 0 before they are known.
    pub fn progress(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.all.load(Ordering::Relaxed))
    }

    /// Whether the search must return, asked before every class and on every stage of a long solution.
    pub fn stopped(&self) -> bool {
        if self.looks.fetch_add(1, Ordering::Relaxed) + 1 >= self.last_look {
            self.stop();
        }
        if self.interrupted() || self.timed_out() {
            return true;
        }
        let late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if late {
            self.late.store(true, Ordering::Relaxed);
        }
        late
    }

    /// Whether the caller asked.
    pub fn interrupted(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Whether the time limit has been seen to pass.
    pub fn timed_out(&self) -> bool {
        self.late.load(Ordering::Relaxed)
    }

    pub(super) fn advance(&self, done: u64, all: u64) {
        self.done.store(done, Ordering::Relaxed);
        self.all.store(all, Ordering::Relaxed);
    }
}
