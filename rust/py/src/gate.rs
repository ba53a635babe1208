//! How a verb calls the core: other Python threads run meanwhile, Ctrl-C ends what lasts, and errors become Python's.

use autopar_core::{Error, Watch};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::any::Any;
use std::panic::{catch_unwind, set_hook, AssertUnwindSafe};
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

pyo3::import_exception!(autopar.errors, SpecError);

/// Pause between two looks for Ctrl-C: a shorter search is never disturbed.
const PAUSE: Duration = Duration::from_millis(20);
/// Stack of the thread that searches, the size a main thread usually has.
const STACK_BYTES: usize = 8 << 20;

/// Where the latest panic happened: file and line.
static PANICKED: Mutex<String> = Mutex::new(String::new());

/// A call of the core: its answer, wrong input, or a panic.
type Outcome<T> = thread::Result<Result<T, Error>>;

/// Keeps the place of a panic for the error that a caller sees, and standard error clean of it.
pub fn keep_panics() {
    set_hook(Box::new(|panic| {
        if let Some(place) = panic.location() {
            *PANICKED.lock().unwrap_or_else(PoisonError::into_inner) =
                format!("{}:{}", place.file(), place.line());
        }
    }));
}

/// Threads and watch of a search. Callers without a type checker give anything.
pub fn run(
    threads: &Bound<'_, PyAny>,
    time_limit_s: Option<&Bound<'_, PyAny>>,
) -> PyResult<(usize, Watch)> {
    let threads = thread_count(threads)?;
    let limit = time_limit_s.map(seconds).transpose()?;
    Ok((threads, Watch::new(limit)))
}

/// Threads that a caller may ask for.
pub fn thread_count(threads: &Bound<'_, PyAny>) -> PyResult<usize> {
    threads.extract().ok().filter(|&n: &usize| n <= 1024).ok_or_else(|| {
        let what = format!("must be a whole number from 0 to 1024, found {}", shown(threads));
        raise(Error::new("threads", what, "Leave it out to use every core."))
    })
}

/// A time limit.
fn seconds(limit: &Bound<'_, PyAny>) -> PyResult<Duration> {
    limit.extract().ok().and_then(|s| Duration::try_from_secs_f64(s).ok()).ok_or_else(|| {
        let what = format!("must be seconds from 0, found {}", shown(limit));
        raise(Error::new("time_limit_s", what, "Leave it out for no limit."))
    })
}

/// The first characters of how Python writes a value.
fn shown(value: &Bound<'_, PyAny>) -> String {
    value.repr().map_or_else(
        |_| "another thing".to_owned(),
        |text| text.to_string_lossy().chars().take(60).collect(),
    )
}

/// Runs work that takes milliseconds while other Python threads run.
pub fn brief<T: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, Error> + Send,
) -> PyResult<T> {
    answer(py.detach(|| catch_unwind(AssertUnwindSafe(work))))
}

/// Runs work that may last, on a thread of its own, while this one looks for Ctrl-C and tells `progress`. What either
/// raises stops the work through its watch and is raised once the work has ended.
pub fn gate<T: Send>(
    py: Python<'_>,
    watch: &Watch,
    progress: Option<Py<PyAny>>,
    work: impl FnOnce() -> Result<T, Error> + Send,
) -> PyResult<T> {
    py.detach(|| {
        thread::scope(|scope| {
            // Nothing is ever sent: the end of the work, a panic too, drops `running`, and that wakes `ended`.
            let (running, ended) = channel::<()>();
            let worker =
                thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, || {
                    let _running = running;
                    work()
                })?;
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(PAUSE) {
                if let Err(raised) = Python::attach(|py| look(py, watch, progress.as_ref())) {
                    watch.stop();
                    let _ = worker.join();
                    return Err(raised);
                }
            }
            answer(worker.join())
        })
    })
}

/// Answers pending signals, then reports progress.
fn look(py: Python<'_>, watch: &Watch, progress: Option<&Py<PyAny>>) -> PyResult<()> {
    py.check_signals()?;
    if let Some(progress) = progress {
        progress.call1(py, watch.progress())?;
    }
    Ok(())
}

/// What Python sees of a call.
fn answer<T>(outcome: Outcome<T>) -> PyResult<T> {
    match outcome {
        Ok(answer) => answer.map_err(raise),
        Err(panic) => Err(PyRuntimeError::new_err(format!(
            "autopar's core failed: {} ({}); please report it with the input",
            message(panic.as_ref()),
            PANICKED.lock().unwrap_or_else(PoisonError::into_inner)
        ))),
    }
}

/// The error map: wrong input becomes `autopar.errors.SpecError(path, what, hint, about)`.
pub fn raise(error: Error) -> PyErr {
    SpecError::new_err((error.path, error.what, error.hint, error.about))
}

/// What a panic said.
fn message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message")
}
