//! The metrics that each program serves, from the literals that register them.
//!
//! A family is declared by its name and its help, which stand side by side: as arguments of a call, in a tuple, or in the
//! fields `name` and `help`. Each of them is a literal, a constant, or a variable of the lines before.
//! `tests/e2e/monitoring.rs` compares the page with what controllers serve.

use std::{collections::BTreeMap, fmt::Write as _};

use syn::{punctuated::Punctuated, visit::Visit};

use super::{cell, conditions::text_of};
use crate::sources::Sources;

/// Where families are declared, and who serves them.
const PROGRAMS: [(&str, &str); 10] = [
    ("Every controller", "crates/runtime/src/"),
    ("Controllers that read metrics agents", "crates/metrics-client/src/"),
    ("inference-controller", "crates/inference-controller/src/"),
    ("training-controller", "crates/training-controller/src/"),
    ("dispatcher-controller", "crates/dispatcher-controller/src/"),
    ("scaler-controller", "crates/scaler-controller/src/"),
    ("endpoint-controller", "crates/endpoint-controller/src/"),
    ("evaluation-controller", "crates/evaluation-controller/src/"),
    ("metrics-agent", "crates/metrics-agent/src/"),
    ("monitor, in pods of workers", "crates/monitor/src/"),
];

pub(super) fn page() -> anyhow::Result<String> {
    let sources = Sources::read()?;
    let mut shared = Families::default();
    shared.visit_file(&sources.file("crates/api/src/monitor.rs")?);
    let mut page = "# Metrics\n\nControllers and the metrics-agent serve them at `/metrics` of `--admin-address`, and monitors \
                    on port 9410.\nPrometheus shows a counter with the ending `_total`.\n"
        .to_owned();
    for (heading, folder) in PROGRAMS {
        let mut families = Families { names: shared.names.clone(), ..Families::default() };
        let declares = |text: &str| text.contains("prometheus_client") || text.contains("ObjectCounts");
        for (path, text) in sources.below(folder).filter(|(_, text)| declares(text)) {
            if !path.contains("/tests") {
                families.visit_file(&syn::parse_file(text)?);
            }
        }
        writeln!(page, "\n## {heading}\n\n| metric | meaning |\n|---|---|")?;
        for (name, help) in families.found {
            writeln!(page, "| `{name}` | {} |", cell(help.trim()))?;
        }
    }
    Ok(page)
}

#[derive(Default)]
struct Families {
    /// Helps by names.
    found: BTreeMap<String, String>,
    /// Texts of constants, and of the variables of the lines before.
    names: BTreeMap<String, String>,
}

impl Families {
    fn pairs(&mut self, parts: &Punctuated<syn::Expr, syn::Token![,]>) {
        for (name, help) in parts.iter().zip(parts.iter().skip(1)) {
            self.pair(name, help);
        }
    }

    /// Name, help and unit; the encoder adds the unit to the name.
    fn with_unit(&mut self, parts: &Punctuated<syn::Expr, syn::Token![,]>) {
        let mut parts = parts.iter();
        let (Some(name), Some(help), Some(syn::Expr::Path(unit))) =
            (parts.next(), parts.next(), parts.next())
        else {
            return;
        };
        let Some(unit) = unit.path.segments.last() else { return };
        if let Some((name, help)) = self.text(name).zip(self.text(help)) {
            let unit = unit.ident.to_string().to_lowercase();
            self.found.insert(format!("{name}_{unit}"), help);
        }
    }

    fn pair(&mut self, name: &syn::Expr, help: &syn::Expr) {
        let Some((name, help)) = self.text(name).zip(self.text(help)) else { return };
        let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_<>".contains(&byte);
        let is_name = name.contains('_') && name.bytes().all(is_of_name);
        let begins_a_sentence = |first: char| first.is_uppercase() || first.is_ascii_digit();
        if is_name && help.contains(' ') && help.starts_with(begins_a_sentence) {
            self.found.insert(name, help);
        }
    }

    fn text(&self, expression: &syn::Expr) -> Option<String> {
        match expression {
            syn::Expr::Reference(reference) => self.text(&reference.expr),
            syn::Expr::Path(path) => self.names.get(&path.path.segments.last()?.ident.to_string()).cloned(),
            // The encoder adds the ending of counters.
            syn::Expr::MethodCall(call) if call.method == "trim_end_matches" => {
                let text = self.text(&call.receiver)?;
                Some(text.trim_end_matches("_total").to_owned())
            }
            syn::Expr::Macro(call) if call.mac.path.is_ident("format") => {
                // Only the name of a kind is ever put into a name.
                Some(call.mac.tokens.to_string().split('"').nth(1)?.replace("{}", "<kind>"))
            }
            expression => text_of(expression),
        }
    }
}

impl<'ast> Visit<'ast> for Families {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if module.ident != "tests" {
            syn::visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_const(&mut self, constant: &'ast syn::ItemConst) {
        if let Some(text) = text_of(&constant.expr) {
            self.names.insert(constant.ident.to_string(), text);
        }
        syn::visit::visit_item_const(self, constant);
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        if let (syn::Pat::Ident(name), Some(init)) = (&local.pat, &local.init)
            && let Some(text) = self.text(&init.expr)
        {
            self.names.insert(name.ident.to_string(), text);
        }
        syn::visit::visit_local(self, local);
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        // `exported` of the metrics-agent has the help at its end.
        let is_row = matches!(&*call.func, syn::Expr::Path(path) if path.path.is_ident("exported"));
        match (call.args.first(), call.args.last()) {
            (Some(name), Some(help)) if is_row => self.pair(name, help),
            _ => self.pairs(&call.args),
        }
        syn::visit::visit_expr_call(self, call);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if call.method == "register_with_unit" {
            self.with_unit(&call.args);
        } else {
            self.pairs(&call.args);
        }
        syn::visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_tuple(&mut self, tuple: &'ast syn::ExprTuple) {
        self.pairs(&tuple.elems);
        syn::visit::visit_expr_tuple(self, tuple);
    }

    fn visit_expr_struct(&mut self, value: &'ast syn::ExprStruct) {
        let of = |wanted: &str| {
            let mut fields = value.fields.iter();
            fields.find(|field| matches!(&field.member, syn::Member::Named(name) if name == wanted))
        };
        if let Some((name, help)) = of("name").zip(of("help")) {
            self.pair(&name.expr, &help.expr);
        }
        syn::visit::visit_expr_struct(self, value);
    }
}
