//! What is written for a query, what is refused, and that nothing reads another namespace.

use proptest::prelude::*;

use super::{
    lexer::{Token, tokens},
    *,
};
use api::aiscaler::AIScaler;

const TARGET: Target<'_> = Target { namespace: "demo", name: "llm.v2" };

fn written(query: &str) -> String {
    Query::parse(query, TARGET, Scope::Namespace).unwrap_or_else(|refusal| panic!("{query}: {refusal}")).text
}

fn refused(query: &str) -> Refusal {
    match Query::parse(query, TARGET, Scope::Namespace) {
        Ok(query) => panic!("accepted as {}", query.text),
        Err(refusal) => refusal,
    }
}

#[test]
fn every_selector_gets_the_namespace() {
    for (query, expected) in [
        ("up", r#"up{namespace="demo"}"#),
        ("up{}", r#"up{namespace="demo"}"#),
        ("{__name__=\"up\"}", r#"{namespace="demo",__name__="up"}"#),
        ("{\"up\"}", r#"{namespace="demo",__name__="up"}"#),
        ("up{a='b',}", r#"up{namespace="demo",a="b"}"#),
        ("sum(a) / sum(b)", r#"sum(a{namespace="demo"}) / sum(b{namespace="demo"})"#),
        ("sum by (pod) (a)", r#"sum by (pod) (a{namespace="demo"})"#),
        ("SUM(a) BY (pod)", r#"sum(a{namespace="demo"}) by (pod) "#),
        ("rate(a_total[5m] offset -1h)", r#"rate(a_total{namespace="demo"}[5m] offset -1h)"#),
        ("max_over_time(a[5m:1m] @ end())", r#"max_over_time(a{namespace="demo"}[5m:1m] @ end())"#),
        (
            "a > bool on (x, y) group_left b",
            r#"a{namespace="demo"} > bool on (x, y) group_left () b{namespace="demo"}"#,
        ),
        (
            "a * ignoring(x) group_right(y) (b or c)",
            r#"a{namespace="demo"} * ignoring (x) group_right (y) (b{namespace="demo"} or c{namespace="demo"})"#,
        ),
        ("vector(0) or on() a", r#"vector(0) or on () a{namespace="demo"}"#),
        ("-a + -(+3)", r#"-a{namespace="demo"} + -(+3)"#),
        ("a unless b # {", r#"a{namespace="demo"} unless b{namespace="demo"}"#),
        ("job:a:rate5m", r#"job:a:rate5m{namespace="demo"}"#),
        (
            r#"label_replace(a, "dst", "$name", "src", "(?P<name>.*)")"#,
            r#"label_replace(a{namespace="demo"}, "dst", "$name", "src", "(?P<name>.*)")"#,
        ),
    ] {
        assert_eq!(written(query), expected, "{query}");
    }
}

#[test]
fn the_own_namespace_may_be_written() {
    for own in [
        "namespace=\"demo\"",
        "namespace='demo'",
        "namespace=~\"demo\"",
        "\"namespace\"=\"demo\"",
        "namespace=\"$namespace\"",
        "namespace=~\"$namespace\"",
        "namespace=$namespace",
        r#"namespace="\x64emo""#,
    ] {
        assert_eq!(written(&format!("up{{{own},a=\"b\"}}")), r#"up{namespace="demo",a="b"}"#, "{own}");
    }
}

#[test]
fn another_namespace_is_refused_and_not_replaced() {
    for other in [
        "namespace=\"other\"",
        "namespace='other'",
        "namespace=`other`",
        "namespace=~\"demo|other\"",
        "namespace=~\".*\"",
        "namespace!=\"demo\"",
        "namespace!~\"demo\"",
        "namespace=\"\"",
        "\"namespace\"=\"other\"",
        r#""\x6eamespace"="other""#,
        "namespace=\"$name\"",
    ] {
        let refusal = refused(&format!("sum(up{{a=\"b\",{other}}})"));
        assert_eq!(refusal.position, 14, "{other}");
        assert!(refusal.why.contains("remove the matcher"), "{refusal}");
    }
}

#[test]
fn what_only_some_servers_read_is_refused() {
    for query in [
        "",
        "up up",
        "up)",
        "(up",
        "up{",
        "up}",
        "up{a}",
        "up{a=}",
        "up{a=b}",
        "up{a=\"b\" or namespace=\"other\"}",
        "up{a=\"b\" c=\"d\"}",
        "up{,}",
        "up{a=\"b\"}{namespace=\"other\"}",
        "sum",
        "by",
        "offset",
        "on(x)",
        "a + on b",
        "a group_left b",
        "a + group_left b",
        "a + on(sum(b)) c",
        "a + on(b) group_left(sum(c)) d",
        "a + on(b) group_left(c)",
        "info(a)",
        "SECRET(a)",
        "RATE(a[5m])",
        "rate(a[5m], )",
        "a[5]",
        "a[]",
        "a[5m:1m:1m]",
        "a offset",
        "a @ now()",
        "WITH (x = y) x",
        "a default b",
        "a\\-b",
        "é",
        "a; b",
        "$name",
        "up{a=\"$other\"}",
        "up{a=$other}",
        "5m",
        "a[5m * 2]",
        "union(a, b)",
        "a keep_metric_names",
    ] {
        refused(query);
    }
}

#[test]
fn a_refusal_says_where_and_what() {
    assert_eq!(refused("sum(rate(x[5m]) by").to_string(), "at character 17 ')' is expected");
    assert_eq!(refused("\"é\" + sum").position, 7);
    assert_eq!(
        refused("up +").to_string(),
        "at character 5 a metric, a number, a function or a parenthesis is expected"
    );
    let long = "a".repeat(LONGEST_QUERY + 1);
    assert!(refused(&long).why.contains("16 KiB"));
}

#[test]
fn deep_nesting_is_refused() {
    assert!(
        Query::parse(&format!("{}1{}", "(".repeat(40), ")".repeat(40)), TARGET, Scope::Namespace).is_ok()
    );
    let deep = format!("{}1{}", "(".repeat(8_000), ")".repeat(8_000));
    assert!(refused(&deep).why.contains("nested"));
    let signs = format!("{}1", "-".repeat(16_000));
    assert!(Query::parse(&signs, TARGET, Scope::Namespace).is_ok(), "signs are not nested");
}

#[test]
fn the_sample_asks_for_the_pods_of_its_target_alone() {
    let sample = include_str!("../../../../deploy/samples/aiscaler.yaml");
    let sample: AIScaler = serde_saphyr::from_str(sample).unwrap();
    let query = sample.spec.source.unwrap().prometheus.unwrap().query;
    assert_eq!(
        written(&query),
        r#"sum(vllm:num_requests_running{namespace="demo",pod=~"llm\\.v2-[^-]+-[^-]+"}) + "#.to_owned()
            + r#"sum(vllm:num_requests_waiting{namespace="demo",pod=~"llm\\.v2-[^-]+-[^-]+"})"#
    );
}

/// The pods of `llm` would have those of `llm-canary` among them with another example.
#[test]
fn a_variable_in_another_place_is_refused_with_an_example_of_one_service() {
    let refusal = refused("$name").to_string();
    assert!(refusal.contains(r#"as in {service="$name"}"#), "{refusal}");
}

#[test]
fn variables_are_quoted_for_their_place() {
    for (query, expected) in [
        ("up{pod=\"$name\"}", r#"up{namespace="demo",pod="llm.v2"}"#),
        ("up{pod=$name}", r#"up{namespace="demo",pod="llm.v2"}"#),
        ("up{pod=~\"$name-.*\"}", r#"up{namespace="demo",pod=~"llm\\.v2-.*"}"#),
        ("up{pod=~`^$name-.+$`}", r#"up{namespace="demo",pod=~"^llm\\.v2-.+$"}"#),
        ("up{a=\"$namespace/$name\"}", r#"up{namespace="demo",a="demo/llm.v2"}"#),
        ("up{a=\"${namespace}_${name}_80\"}", r#"up{namespace="demo",a="demo_llm.v2_80"}"#),
        ("up{a=~\"${name}_(80|81)$\"}", r#"up{namespace="demo",a=~"llm\\.v2_(80|81)$"}"#),
        ("up{a=\"${other}\"}", r#"up{namespace="demo",a="${other}"}"#),
        ("up{a=~\"a${2}\"}", r#"up{namespace="demo",a=~"a${2}"}"#),
        ("up{a=~\"x$|y\"}", r#"up{namespace="demo",a=~"x$|y"}"#),
    ] {
        assert_eq!(written(query), expected, "{query}");
    }
    let hostile = Target { namespace: "demo", name: "a\"} or up{b=\"" };
    let query = Query::parse("up{pod=\"$name\"}", hostile, Scope::Namespace).unwrap();
    assert_eq!(query.text(), r#"up{namespace="demo",pod="a\"} or up{b=\""}"#);
}

#[test]
fn with_the_flag_every_namespace_may_be_read() {
    let query =
        Query::parse("sum(up{namespace=\"other\",a=\"$name\"}) + b", TARGET, Scope::Everything).unwrap();
    assert_eq!(query.text(), r#"sum(up{namespace="other",a="llm.v2"}) + b{}"#);
}

#[test]
fn a_counter_without_its_rate_is_named() {
    let rate = |query: &str| Query::parse(query, TARGET, Scope::Namespace).unwrap().rate;
    assert_eq!(rate("sum(rate(a_total[1m])) / sum(increase(b_total[1m]))"), Some("rate"));
    assert_eq!(rate("sum(a_total) or vector(0)"), None);
    let total = |query: &str| Query::parse(query, TARGET, Scope::Namespace).unwrap().total;
    assert_eq!(total("a - sum(b_total) or vector(0)"), Some("sum"));
    for lost in ["sum by () (a)", "sum(a) by (code)", "sum without (le, pod) (a)", "max(sum by (pod) (a))"] {
        assert!(total(lost).is_some(), "{lost}");
    }
    for grouped in ["sum by (pod) (a)", "sum(a) by (code, instance)", "sum(a) without (le)", "a or vector(0)"]
    {
        assert_eq!(total(grouped), None, "{grouped}");
    }
    let bare = |query: &str| Query::parse(query, TARGET, Scope::Namespace).unwrap().bare_counters;
    for query in [
        "sum(a_total)",
        "a_total",
        "{__name__=\"a_total\"}",
        "max_over_time(a_total[5m])",
        "sum(a_total) + rate(a_total[5m])",
    ] {
        assert_eq!(bare(query), ["a_total"], "{query}");
    }
    assert_eq!(bare("histogram_quantile(0.95, sum by (le) (d_bucket))"), ["d_bucket"]);
    for query in [
        "sum(rate(a_total[5m]))",
        "sum(increase(a_total[1m])) * 60",
        "histogram_quantile(0.95, sum by (le) (rate(d_bucket[5m])))",
        "count(a_total)",
        "sum(queue_depth)",
        "rate((sum(a_total))[5m:])",
    ] {
        assert_eq!(bare(query), [""; 0], "{query}");
    }
}

/// Whether each name of a metric in a written query is followed by braces that begin with the namespace.
fn is_restricted(text: &str) -> bool {
    let tokens: Vec<Token> = tokens(text).unwrap().into_iter().map(|spanned| spanned.token).collect();
    let opening = [Token::Word("namespace".into()), Token::Symbol("="), Token::Text("demo".into())];
    let braces: Vec<usize> = (0..tokens.len()).filter(|at| tokens[*at] == Token::Symbol("{")).collect();
    let are_named = braces.iter().all(|at| tokens[at + 1..].starts_with(&opening));
    // Outside of braces and of lists of labels each word is a function, an operator or before braces.
    let (mut in_braces, mut in_labels) = (false, false);
    let mut roles_are_known = true;
    for (at, token) in tokens.iter().enumerate() {
        match token {
            Token::Symbol("{") => in_braces = true,
            Token::Symbol("}") => in_braces = false,
            Token::Symbol(")") => in_labels = false,
            Token::Word(word) if !in_braces && !in_labels => {
                let next = tokens.get(at + 1);
                let lists = ["by", "without", "on", "ignoring", "group_left", "group_right"];
                let plain = ["and", "or", "unless", "atan2", "bool", "offset"];
                if lists.contains(&word.as_str()) {
                    in_labels = next == Some(&Token::Symbol("("));
                    roles_are_known &= in_labels;
                } else {
                    let is_called = next == Some(&Token::Symbol("("));
                    let is_number = ["inf", "nan"].contains(&word.to_ascii_lowercase().as_str());
                    let is_aggregation =
                        matches!(next, Some(Token::Word(next)) if ["by", "without"].contains(&next.as_str()));
                    let is_metric = next == Some(&Token::Symbol("{"));
                    roles_are_known &= is_called
                        || is_number
                        || is_aggregation
                        || is_metric
                        || plain.contains(&word.as_str());
                }
            }
            _ => {}
        }
    }
    are_named && roles_are_known
}

fn pieces() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "up",
        "a_total",
        "sum",
        "by",
        "on",
        "group_left",
        "offset",
        "bool",
        "rate",
        "and",
        "or",
        "namespace",
        "other",
        "(",
        ")",
        "{",
        "}",
        "[",
        "]",
        ",",
        "=",
        "=~",
        "!=",
        "+",
        "-",
        "@",
        ":",
        "5m",
        "1",
        "\"demo\"",
        "\"other\"",
        "'x'",
        "`y`",
        "$name",
        "$namespace",
        "# c\n",
        "inf",
        "start",
        "__name__",
        "{}",
        "(x)",
        "\"",
    ]);
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.join(" "))
}

fn expressions() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("up".to_owned()),
        Just("{__name__=~\"a.*\",b!=\"\"}".to_owned()),
        Just("x{namespace=\"demo\"}".to_owned()),
        Just("1e3".to_owned()),
        Just("Inf".to_owned()),
    ];
    leaf.prop_recursive(5, 32, 3, |inner| {
        prop_oneof![
            inner.clone().prop_map(|a| format!("sum by (pod) ({a})")),
            inner.clone().prop_map(|a| format!("rate(({a})[5m:])")),
            inner.clone().prop_map(|a| format!("-{a}")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a}) / on (x) group_left () {b}")),
            (inner.clone(), inner).prop_map(|(a, b)| format!("{a} OR {b}")),
        ]
    })
}

proptest! {
    #[test]
    fn any_text_is_restricted_or_refused(query in any::<String>()) {
        if let Ok(query) = Query::parse(&query, TARGET, Scope::Namespace) {
            prop_assert!(is_restricted(query.text()), "{}", query.text());
        }
    }

    #[test]
    fn any_sequence_of_tokens_is_restricted_or_refused(query in pieces()) {
        if let Ok(query) = Query::parse(&query, TARGET, Scope::Namespace) {
            prop_assert!(is_restricted(query.text()), "{}", query.text());
        }
    }

    #[test]
    fn expressions_are_accepted_restricted_and_stable(query in expressions()) {
        let query = written(&query);
        prop_assert!(is_restricted(&query), "{query}");
        prop_assert_eq!(written(&query), query.clone());
    }
}
