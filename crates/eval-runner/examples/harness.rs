//! The stand-in for a harness that this crate's tests run: it copies recorded answers to where the harness would
//! write them. Its environment says how it behaves.

use std::{
    env, fs,
    io::{self, Write as _},
    path::Path,
    process::ExitCode,
    thread::sleep,
    time::Duration,
};

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if arguments == ["--version"] {
        let _ = writeln!(io::stdout(), "evalscope 1.10.0");
        return ExitCode::SUCCESS;
    }
    if let Ok(path) = env::var("FAKE_HARNESS_RECORD") {
        let key = env::var("EVALSCOPE_API_KEY").or(env::var("OPENAI_API_KEY")).unwrap_or_default();
        let offline = env::var("HF_HUB_OFFLINE").unwrap_or_default();
        let own = env::var("EVAL_API_KEY").unwrap_or_default();
        let lines =
            [arguments.join("\n"), format!("key={key}"), format!("own={own}"), format!("offline={offline}")];
        if let Err(error) = fs::write(path, lines.join("\n")) {
            return failed(&error);
        }
    }
    let work = arguments.iter().find_map(|argument| {
        argument.strip_prefix("--work-dir=").or(argument.strip_prefix("--output_path="))
    });
    if let (Some(work), Ok(files)) = (work, env::var("FAKE_HARNESS_FILES"))
        && let Err(error) = copy(Path::new(&files), Path::new(work))
    {
        return failed(&error);
    }
    if let Ok(text) = env::var("FAKE_HARNESS_STDERR") {
        let _ = writeln!(io::stderr(), "{text}");
    }
    let number = |name| env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    if let Some(milliseconds) = number("FAKE_HARNESS_MS") {
        sleep(Duration::from_millis(milliseconds));
    }
    ExitCode::from(number("FAKE_HARNESS_EXIT").and_then(|code| u8::try_from(code).ok()).unwrap_or(0))
}

fn failed(error: &io::Error) -> ExitCode {
    let _ = writeln!(io::stderr(), "the stand-in failed: {error}");
    ExitCode::FAILURE
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let place = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &place)?
        } else {
            fs::copy(entry.path(), place).map(|_| ())?
        }
    }
    Ok(())
}
