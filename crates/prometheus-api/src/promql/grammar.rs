//! The grammar of PromQL as far as all servers agree on it, and the query written anew while it is read. Pure.
//!
//! Precedence does not matter, because the order of the tokens stays. What matters is the role of each name: metric,
//! function, operator or label. Every name in the place of a value is followed by braces or by an opening parenthesis in
//! the result, so no server can read it in another role.

use super::{
    DEEPEST, Query, Refusal, Scope, Target,
    lexer::{Spanned, Token, is_label, is_variable_part},
    looks_like_a_counter,
    words::{AGGREGATIONS, FUNCTIONS, KEYWORDS, NUMBERS, OF_COUNTERS, OPERATORS, RATES, WORD_OPERATORS},
};

const NAMESPACE: &str = "namespace";
const METRIC_NAME: &str = "__name__";
const MOST_BARE_COUNTERS: usize = 8;

pub(super) struct Grammar<'a> {
    query: &'a str,
    tokens: Vec<Spanned>,
    next: usize,
    depth: usize,
    /// Calls of [`OF_COUNTERS`] around the next token.
    counting: usize,
    target: Target<'a>,
    scope: Scope,
    out: String,
    bare_counters: Vec<String>,
    rate: Option<&'static str>,
    total: Option<&'static str>,
}

/// Whether series of several pods become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grouping {
    KeepsPods,
    LosesPods,
}

/// Labels of which each pod has its own value.
const OF_PODS: [&str; 4] = ["pod", "instance", "pod_name", "kubernetes_pod_name"];

impl<'a> Grammar<'a> {
    pub(super) fn new(query: &'a str, tokens: Vec<Spanned>, target: Target<'a>, scope: Scope) -> Self {
        let out = String::with_capacity(query.len() + 64);
        let bare_counters = Vec::new();
        Self {
            query,
            tokens,
            next: 0,
            depth: 0,
            counting: 0,
            target,
            scope,
            out,
            bare_counters,
            rate: None,
            total: None,
        }
    }

    pub(super) fn query(mut self) -> Result<Query, Refusal> {
        self.expression()?;
        match self.tokens.get(self.next) {
            None => Ok(Query {
                text: self.out,
                bare_counters: self.bare_counters,
                rate: self.rate,
                total: self.total,
            }),
            Some(_) => Err(self.refusal("an operator or the end of the query is expected")),
        }
    }

    /// `value (operator value)*`
    fn expression(&mut self) -> Result<(), Refusal> {
        if self.depth == DEEPEST {
            return Err(self.refusal(format!("the query is nested deeper than {DEEPEST} levels")));
        }
        self.depth += 1;
        self.value()?;
        while self.operator()? {
            self.value()?;
        }
        self.depth -= 1;
        Ok(())
    }

    /// An operator with its modifiers, if there is one.
    fn operator(&mut self) -> Result<bool, Refusal> {
        let operator = match self.peek() {
            Some(Token::Symbol(symbol)) if OPERATORS.contains(symbol) => (*symbol).to_owned(),
            Some(Token::Word(word)) if WORD_OPERATORS.contains(&lower(word).as_str()) => lower(word),
            _ => return Ok(false),
        };
        self.next += 1;
        self.write(&[" ", &operator, " "]);
        if self.take_word(&["bool"]).is_some() {
            self.write(&["bool "]);
        }
        if let Some(matching) = self.take_word(&["on", "ignoring"]) {
            self.write(&[&matching]);
            self.labels()?;
            if let Some(grouping) = self.take_word(&["group_left", "group_right"]) {
                self.write(&[&grouping]);
                if self.peek_symbol("(") {
                    self.labels()?;
                } else {
                    // Otherwise the parenthesis of the next value would begin a list of labels.
                    self.write(&[" () "]);
                }
            }
        }
        Ok(true)
    }

    /// A value with its signs and modifiers.
    fn value(&mut self) -> Result<(), Refusal> {
        while let Some(sign) = self.take_symbol(&["+", "-"]) {
            self.write(&[sign]);
        }
        match self.peek() {
            Some(Token::Symbol("(")) => {
                self.take("(")?;
                self.expression()?;
                self.take(")")?;
            }
            Some(Token::Symbol("{")) => self.selector(None)?,
            Some(Token::Number(number)) => {
                let number = number.clone();
                self.next += 1;
                self.write(&[&number]);
            }
            Some(Token::Text(text)) => {
                let text = quoted(text);
                self.next += 1;
                self.write(&[&text]);
            }
            Some(Token::Word(word)) => {
                let word = word.clone();
                self.word(word)?;
            }
            Some(Token::Variable(_)) => {
                return Err(
                    self.refusal("a variable may only be the value of a matcher, as in {service=\"$name\"}")
                );
            }
            Some(Token::Duration(_) | Token::Symbol(_)) | None => {
                return Err(self.refusal("a metric, a number, a function or a parenthesis is expected"));
            }
        }
        while self.modifier()? {}
        Ok(())
    }

    /// A word in the place of a value.
    fn word(&mut self, word: String) -> Result<(), Refusal> {
        let lower = lower(&word);
        let is_called =
            matches!(self.tokens.get(self.next + 1), Some(Spanned { token: Token::Symbol("("), .. }));
        if NUMBERS.contains(&lower.as_str()) {
            self.next += 1;
            self.write(&[&word]);
            return Ok(());
        }
        if AGGREGATIONS.contains(&lower.as_str()) {
            let is_grouped = matches!(
                self.tokens.get(self.next + 1),
                Some(Spanned { token: Token::Word(next), .. }) if is_grouping(next)
            );
            if is_called || is_grouped {
                return self.aggregation(&lower);
            }
        }
        if AGGREGATIONS.contains(&lower.as_str()) || KEYWORDS.contains(&lower.as_str()) {
            let why = format!(
                "'{word}' is a word of PromQL: a metric of this name is written {{__name__=\"{word}\"}}"
            );
            return Err(self.refusal(why));
        }
        if !is_called {
            self.next += 1;
            return self.selector(Some(word));
        }
        if !FUNCTIONS.contains(&word.as_str()) {
            let word = text::cut(word, 64);
            return Err(self.refusal(format!("'{word}' is not a function that the controller allows")));
        }
        self.rate = self.rate.or(RATES.into_iter().find(|rate| *rate == word));
        self.next += 1;
        self.write(&[&word]);
        self.arguments(OF_COUNTERS.contains(&word.as_str()))
    }

    /// `sum by (a) (…)` or `sum(…) by (a)`
    fn aggregation(&mut self, operator: &str) -> Result<(), Refusal> {
        self.next += 1;
        self.write(&[operator]);
        let before = self.grouping()?;
        self.arguments(OF_COUNTERS.contains(&operator))?;
        let grouping = match before {
            Some(grouping) => Some(grouping),
            None => self.grouping()?,
        };
        if grouping != Some(Grouping::KeepsPods) {
            self.total = self.total.or(AGGREGATIONS.into_iter().find(|known| *known == operator));
        }
        Ok(())
    }

    fn grouping(&mut self) -> Result<Option<Grouping>, Refusal> {
        let Some(word) = self.take_word(&["by", "without"]) else { return Ok(None) };
        self.write(&[" ", &word]);
        let labels = self.labels()?;
        let names_pods = labels.iter().any(|label| OF_PODS.contains(&label.as_str()));
        Ok(Some(if names_pods == (word == "by") { Grouping::KeepsPods } else { Grouping::LosesPods }))
    }

    fn arguments(&mut self, counts: bool) -> Result<(), Refusal> {
        self.take("(")?;
        self.counting += usize::from(counts);
        if !self.peek_symbol(")") {
            self.expression()?;
            while self.peek_symbol(",") {
                self.take(",")?;
                self.expression()?;
            }
        }
        self.counting -= usize::from(counts);
        self.take(")")
    }

    /// `(a, b)`
    fn labels(&mut self) -> Result<Vec<String>, Refusal> {
        self.next_is("(")?;
        self.write(&[" ("]);
        let mut separator = "";
        let mut labels = Vec::new();
        while !self.peek_symbol(")") {
            if !separator.is_empty() {
                self.next_is(",")?;
                if self.peek_symbol(")") {
                    break;
                }
            }
            let label = match self.peek() {
                Some(Token::Word(word)) if is_label(word) => word.clone(),
                Some(Token::Text(text)) if is_label(text) => text.clone(),
                Some(Token::Text(text)) => quoted(text),
                _ => return Err(self.refusal("the name of a label is expected")),
            };
            self.next += 1;
            self.write(&[separator, &label]);
            labels.push(label);
            separator = ", ";
        }
        self.next += 1;
        self.write(&[") "]);
        Ok(labels)
    }

    /// `[5m]`, `[5m:1m]`, `offset 5m` or `@ 1700000000`, if there is one.
    fn modifier(&mut self) -> Result<bool, Refusal> {
        match self.peek() {
            Some(Token::Symbol("[")) => {
                self.take("[")?;
                self.duration()?;
                if self.peek_symbol(":") {
                    self.take(":")?;
                    if !self.peek_symbol("]") {
                        self.duration()?;
                    }
                }
                self.take("]")?;
            }
            Some(Token::Symbol("@")) => {
                self.next += 1;
                self.write(&[" @ "]);
                if let Some(bound) = self.take_word(&["start", "end"]) {
                    self.write(&[&bound]);
                    self.take("(")?;
                    self.take(")")?;
                } else {
                    if let Some(sign) = self.take_symbol(&["+", "-"]) {
                        self.write(&[sign]);
                    }
                    let Some(Token::Number(time)) = self.peek().cloned() else {
                        return Err(self.refusal("a time in seconds is expected after @"));
                    };
                    self.next += 1;
                    self.write(&[&time]);
                }
            }
            Some(Token::Word(word)) if lower(word) == "offset" => {
                self.next += 1;
                self.write(&[" offset "]);
                if let Some(sign) = self.take_symbol(&["+", "-"]) {
                    self.write(&[sign]);
                }
                self.duration()?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn duration(&mut self) -> Result<(), Refusal> {
        let Some(Token::Duration(duration)) = self.peek().cloned() else {
            return Err(self.refusal("a duration such as 5m is expected"));
        };
        self.next += 1;
        self.write(&[&duration]);
        Ok(())
    }

    /// A selector, of which the name of the metric has been read.
    fn selector(&mut self, name: Option<String>) -> Result<(), Refusal> {
        self.write(&[name.as_deref().unwrap_or_default(), "{"]);
        let mut separator = match self.scope {
            Scope::Namespace => {
                let namespace = quoted(self.target.namespace);
                self.write(&[NAMESPACE, "=", &namespace]);
                ","
            }
            Scope::Everything => "",
        };
        let mut metric = name;
        if self.peek_symbol("{") {
            self.next += 1;
            while !self.peek_symbol("}") {
                let matcher = self.matcher()?;
                if matcher.label == METRIC_NAME && matcher.operator == "=" {
                    metric = Some(matcher.value.clone());
                }
                if !self.is_implied(&matcher)? {
                    let label = if is_label(&matcher.label) { matcher.label } else { quoted(&matcher.label) };
                    self.write(&[separator, &label, matcher.operator, &quoted(&matcher.value)]);
                    separator = ",";
                }
                if !self.peek_symbol("}") {
                    self.next_is(",")?;
                }
            }
            self.next += 1;
        }
        self.write(&["}"]);
        if let Some(metric) = metric
            && self.counting == 0
            && looks_like_a_counter(&metric)
            && self.bare_counters.len() < MOST_BARE_COUNTERS
            && !self.bare_counters.contains(&metric)
        {
            self.bare_counters.push(metric);
        }
        Ok(())
    }

    /// `label="value"`, or a name of a metric in quotes.
    fn matcher(&mut self) -> Result<Matcher, Refusal> {
        let at = self.next;
        let label = match self.peek() {
            Some(Token::Word(word)) if is_label(word) => word.clone(),
            Some(Token::Text(text)) => text.clone(),
            _ => return Err(self.refusal("the name of a label is expected")),
        };
        let is_text = matches!(self.peek(), Some(Token::Text(_)));
        self.next += 1;
        let Some(operator) = self.take_symbol(&["=~", "!~", "!=", "="]) else {
            if is_text && (self.peek_symbol(",") || self.peek_symbol("}")) {
                return Ok(Matcher { at, label: METRIC_NAME.to_owned(), operator: "=", value: label });
            }
            return Err(self.refusal("one of =, !=, =~ and !~ is expected"));
        };
        let is_regex = operator.ends_with('~');
        let value = match self.peek().cloned() {
            Some(Token::Text(text)) => self.filled(&text, is_regex)?,
            Some(Token::Variable(name)) => self.filled(&format!("${name}"), is_regex)?,
            _ => return Err(self.refusal("a string is expected")),
        };
        self.next += 1;
        Ok(Matcher { at, label, operator, value })
    }

    /// Whether the forced matcher says what this one says. Another matcher of the namespace is refused: silently narrowed,
    /// it would give no series, and its author would look for the reason elsewhere.
    fn is_implied(&self, matcher: &Matcher) -> Result<bool, Refusal> {
        if self.scope == Scope::Everything || matcher.label != NAMESPACE {
            return Ok(false);
        }
        if matches!(matcher.operator, "=" | "=~") && matcher.value == self.target.namespace {
            return Ok(true);
        }
        let at = self.tokens.get(matcher.at).map_or(self.query.len(), |spanned| spanned.at);
        let value = text::cut(text::printable(&matcher.value), 64);
        let why = format!(
            "namespace{}\"{value}\" is not the object's namespace {}: remove the matcher, the controller adds it",
            matcher.operator, self.target.namespace
        );
        Err(Refusal::new(self.query, at, why))
    }

    /// The value of a matcher with its variables replaced: `$name`, or `${name}` before a letter, a digit or `_`. A `$` that no
    /// name follows is an anchor.
    fn filled(&self, value: &str, is_regex: bool) -> Result<String, Refusal> {
        let mut filled = String::with_capacity(value.len());
        let mut rest = value;
        while let Some((before, after)) = rest.split_once('$') {
            filled.push_str(before);
            let in_braces = after.strip_prefix('{').and_then(|after| after.split_once('}'));
            let in_braces = in_braces.filter(|(name, _)| ["namespace", "name"].contains(name));
            let (name, after) = in_braces.unwrap_or_else(|| {
                after.split_at(after.find(|c| !is_variable_part(c)).unwrap_or(after.len()))
            });
            let replacement = match name {
                "" => "$",
                "namespace" => self.target.namespace,
                "name" => self.target.name,
                _ => {
                    let name = text::cut(name.to_owned(), 64);
                    return Err(
                        self.refusal(format!("${name} is not a variable: there are $namespace and $name"))
                    );
                }
            };
            if is_regex && !name.is_empty() {
                escape(replacement, &mut filled);
            } else {
                filled.push_str(replacement);
            }
            rest = after;
        }
        filled.push_str(rest);
        Ok(filled)
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.next).map(|spanned| &spanned.token)
    }

    fn peek_symbol(&self, symbol: &str) -> bool {
        matches!(self.peek(), Some(Token::Symbol(next)) if *next == symbol)
    }

    fn take_symbol(&mut self, symbols: &[&'static str]) -> Option<&'static str> {
        let Some(Token::Symbol(next)) = self.peek() else { return None };
        let taken = symbols.iter().find(|symbol| *symbol == next).copied()?;
        self.next += 1;
        Some(taken)
    }

    /// The next word in lower case, if it is one of these.
    fn take_word(&mut self, words: &[&str]) -> Option<String> {
        let Some(Token::Word(next)) = self.peek() else { return None };
        let word = lower(next);
        words.contains(&word.as_str()).then(|| self.next += 1)?;
        Some(word)
    }

    /// Reads and writes this symbol.
    fn take(&mut self, symbol: &str) -> Result<(), Refusal> {
        self.next_is(symbol)?;
        self.write(&[symbol]);
        if symbol == "," {
            self.write(&[" "]);
        }
        Ok(())
    }

    /// Reads this symbol.
    fn next_is(&mut self, symbol: &str) -> Result<(), Refusal> {
        if !self.peek_symbol(symbol) {
            return Err(self.refusal(format!("'{symbol}' is expected")));
        }
        self.next += 1;
        Ok(())
    }

    fn write(&mut self, parts: &[&str]) {
        self.out.extend(parts.iter().copied());
    }

    /// A refusal of the next token.
    fn refusal(&self, why: impl Into<String>) -> Refusal {
        let at = self.tokens.get(self.next).map_or(self.query.len(), |spanned| spanned.at);
        Refusal::new(self.query, at, why)
    }
}

struct Matcher {
    /// Index of its first token.
    at: usize,
    label: String,
    operator: &'static str,
    value: String,
}

fn lower(word: &str) -> String {
    word.to_ascii_lowercase()
}

fn is_grouping(word: &str) -> bool {
    ["by", "without"].contains(&lower(word).as_str())
}

/// A string literal that every server reads in the same way.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            _ if c.is_control() => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
            _ => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// Appends a regular expression that matches only this text.
fn escape(text: &str, regex: &mut String) {
    for c in text.chars() {
        if "\\.+*?()|[]{}^$".contains(c) {
            regex.push('\\');
        }
        regex.push(c);
    }
}
