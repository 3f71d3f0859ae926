//! The custom resources as `kubectl get` shows them, refreshed until all are done.
//!
//! The API server makes the columns and `api::controllers` defines when an object is done, so this file names no kind.

use std::{
    io::{IsTerminal as _, stdout},
    time::Duration,
};

use anyhow::{Context as _, bail};
use api::{conditions, controllers::Kind};
use kube::{Client, api::DynamicObject, core::ApiResource};
use serde::Deserialize;

/// Fast enough to look alive.
const REFRESH: Duration = Duration::from_millis(250);

/// Shows the objects of these kinds and returns when every one is done, or has failed if its name is in `failing`; it may
/// never. Another one that fails is an error.
pub(super) async fn until_all_done(
    client: &Client,
    kinds: &[&Kind],
    failing: &[String],
) -> anyhow::Result<()> {
    let mut screen = Screen { in_place: stdout().is_terminal(), shown: Vec::new() };
    let mut widths: Vec<Widths> = vec![Widths::default(); kinds.len()];
    loop {
        let mut lines = Vec::new();
        let mut all_done = true;
        let mut failures = Vec::new();
        for (kind, widths) in kinds.iter().zip(&mut widths) {
            let table = fetch(client, &kind.resource()).await?;
            let failed = kind.done_with(conditions::FAILED);
            for Row { cells: _, object } in &table.rows {
                let has_failed = failed.is_done(object);
                all_done &= has_failed || kind.is_done(object);
                if has_failed {
                    failures.push(Failure::of(object));
                }
            }
            lines.extend(table.lines(widths));
        }
        screen.show(lines);
        if all_done {
            for Failure { name, reason, message } in &failures {
                println!("\n{name} has failed ({reason}): {message}");
            }
            let unexpected = failures.iter().find(|failure| !failing.contains(&failure.name));
            if let Some(Failure { name, .. }) = unexpected {
                bail!(
                    "the sample {name} has failed; the cluster is left running, stop it with `cargo xtask down`"
                );
            }
            return Ok(());
        }
        tokio::time::sleep(REFRESH).await;
    }
}

/// An object that has failed for good, and why.
struct Failure {
    name: String,
    reason: String,
    message: String,
}

impl Failure {
    fn of(object: &DynamicObject) -> Self {
        let text = |field: &str| object.data["status"][field].as_str().unwrap_or_default().to_owned();
        Self {
            name: object.metadata.name.clone().unwrap_or_default(),
            reason: text("reason"),
            message: text("message"),
        }
    }
}

/// What the API server prints for `kubectl get`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Table {
    column_definitions: Vec<Column>,
    #[serde(default)]
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Column {
    name: String,
    /// Columns above 0 are for `-o wide`.
    #[serde(default)]
    priority: i32,
}

#[derive(Deserialize)]
struct Row {
    cells: Vec<serde_json::Value>,
    object: DynamicObject,
}

async fn fetch(client: &Client, kind: &ApiResource) -> anyhow::Result<Table> {
    let request =
        http::Request::get(format!("/apis/{}/{}?includeObject=Object", kind.api_version, kind.plural))
            .header(http::header::ACCEPT, "application/json;as=Table;v=v1;g=meta.k8s.io")
            .body(Vec::new())
            .context("failed to make a request")?;
    client.request(request).await.with_context(|| format!("failed to list {}", kind.plural))
}

/// Of each column, in characters. They only grow, so that a line that is printed below an older one lines up with it.
#[derive(Clone, Debug, Default)]
struct Widths(Vec<usize>);

impl Widths {
    fn grow(&mut self, cells: &[String]) {
        self.0.resize(cells.len(), 0);
        for (width, cell) in self.0.iter_mut().zip(cells) {
            *width = (*width).max(cell.len());
        }
    }
}

impl Table {
    /// The head and one line per object, in columns of equal width.
    fn lines(&self, widths: &mut Widths) -> Vec<Line> {
        let wanted: Vec<usize> = (0..self.column_definitions.len())
            .filter(|&at| self.column_definitions[at].priority == 0)
            .collect();
        let head = wanted.iter().map(|&at| self.column_definitions[at].name.to_uppercase()).collect();
        let rows = self.rows.iter().map(|row| {
            wanted.iter().map(|&at| row.cells.get(at).map(shown).unwrap_or_default()).collect::<Vec<_>>()
        });
        let all: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
        for cells in &all {
            widths.grow(cells);
        }
        let age = all[0].iter().position(|name| name == "AGE");
        all.iter()
            .map(|cells| {
                let padded = cells.iter().zip(&widths.0).map(|(cell, &width)| format!("{cell:<width$}   "));
                let lasting = cells.iter().enumerate().filter(|&(at, _)| Some(at) != age);
                Line {
                    text: padded.collect::<String>().trim_end().to_owned(),
                    content: lasting.map(|(_, cell)| cell.clone()).collect(),
                }
            })
            .collect()
    }
}

/// A line of a table, and its cells without the age.
#[derive(Debug, PartialEq)]
struct Line {
    text: String,
    content: Vec<String>,
}

fn shown(cell: &serde_json::Value) -> String {
    match cell {
        serde_json::Value::String(text) => text.clone(),
        serde_json::Value::Null => String::new(),
        other => other.to_string(),
    }
}

struct Screen {
    in_place: bool,
    shown: Vec<Line>,
}

impl Screen {
    /// On a terminal the table is drawn over the last one; elsewhere only lines with new content are added.
    fn show(&mut self, lines: Vec<Line>) {
        if self.in_place && !self.shown.is_empty() {
            print!("\x1b[{}A\x1b[J", self.shown.len());
        }
        for line in &lines {
            let is_new = !self.shown.iter().any(|shown| shown.content == line.content);
            if self.in_place || is_new {
                println!("{}", line.text);
            }
        }
        self.shown = lines;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: serde_json::Value) -> Table {
        serde_json::from_value(serde_json::json!({
            "columnDefinitions": [
                {"name": "Name", "priority": 0}, {"name": "Phase", "priority": 0},
                {"name": "Ready", "priority": 0}, {"name": "Url", "priority": 1},
            ],
            "rows": rows,
        }))
        .unwrap()
    }

    fn text(table: &Table, widths: &mut Widths) -> Vec<String> {
        table.lines(widths).into_iter().map(|line| line.text).collect()
    }

    #[test]
    fn columns_line_up_and_wide_ones_are_left_out() {
        let one = table(serde_json::json!([
            {"cells": ["chat", "Ready", 2, "http://chat"], "object": {"metadata": {}}},
        ]));
        let lines = text(&one, &mut Widths::default());
        assert_eq!(lines, ["NAME   PHASE   READY", "chat   Ready   2"]);
    }

    #[test]
    fn a_later_frame_lines_up_with_an_earlier_one() {
        let mut widths = Widths::default();
        let row = |name: &str| serde_json::json!({"cells": [name, "", 0, ""], "object": {"metadata": {}}});
        let both = table(serde_json::json!([row("a-long-name"), row("chat")]));
        text(&both, &mut widths);
        let later = table(serde_json::json!([row("chat")]));
        assert_eq!(text(&later, &mut widths)[1], "chat                  0");
    }
}
