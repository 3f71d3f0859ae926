//! The options of the controllers and of the metrics-agent, from their command lines.

use std::{collections::BTreeSet, fmt::Write as _};

use clap::{Arg, Command, CommandFactory as _};

use super::cell;

pub(super) fn page() -> String {
    let controllers = [
        dispatcher_controller::Args::command(),
        endpoint_controller::Args::command(),
        evaluation_controller::Args::command(),
        inference_controller::Args::command(),
        scaler_controller::Args::command(),
        training_controller::Args::command(),
    ];
    let of_all: BTreeSet<String> = controllers
        .iter()
        .map(names)
        .reduce(|all, names| all.intersection(&names).cloned().collect())
        .unwrap_or_default();
    let mut page =
        "# Options\n\nThe options of the controllers and of the metrics-agent. An environment variable sets the same.\n\
                    An option on the command line wins.\n"
            .to_owned();
    let [first, ..] = &controllers;
    section(&mut page, "Every controller", first, |name| of_all.contains(name));
    for controller in &controllers {
        section(&mut page, controller.get_name(), controller, |name| !of_all.contains(name));
    }
    section(&mut page, "metrics-agent", &metrics_agent::command(), |_| true);
    page
}

fn names(command: &Command) -> BTreeSet<String> {
    command.get_arguments().filter_map(|argument| Some(argument.get_long()?.to_owned())).collect()
}

fn section(page: &mut String, heading: &str, command: &Command, is_in: impl Fn(&str) -> bool) {
    let _ = writeln!(page, "\n## {heading}\n\n| option | variable | default | meaning |\n|---|---|---|---|");
    for argument in command.get_arguments() {
        let Some(name) = argument.get_long().filter(|name| *name != "help" && *name != "version") else {
            continue;
        };
        if is_in(name) {
            row(page, name, argument);
        }
    }
}

fn row(page: &mut String, name: &str, argument: &Arg) {
    let variable = argument.get_env().map(|variable| format!("`{}`", variable.to_string_lossy()));
    let takes_value = argument.get_action().takes_values();
    let defaults = argument.get_default_values().iter().filter(|default| takes_value && !default.is_empty());
    let defaults: Vec<String> = defaults.map(|default| format!("`{}`", default.to_string_lossy())).collect();
    let mut meaning = argument.get_help().map(ToString::to_string).unwrap_or_default();
    let values: Vec<String> =
        argument.get_possible_values().iter().map(|value| format!("`{}`", value.get_name())).collect();
    if takes_value && !values.is_empty() {
        meaning = format!("{meaning}: {}", values.join(", "));
    }
    let _ = writeln!(
        page,
        "| `--{name}` | {} | {} | {} |",
        variable.unwrap_or_default(),
        cell(&defaults.join(" ")),
        cell(&meaning)
    );
}
