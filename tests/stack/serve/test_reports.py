"""The catalogue against public reports, and the page that tells how often it is right."""

from tests.stack.serve.report_table import BEGIN, END, PAGE, left_out, render, rows


def test_at_least_nine_in_ten_reports_of_the_list_are_given_their_cause() -> None:
    table = [row for row in rows() if row.set != "fresh"]
    right = [row for row in table if row.right]
    assert len(table) == 115
    assert len(right) * 10 >= len(table) * 9, [row.id for row in table if not row.right]


def test_each_report_of_the_list_is_judged_or_left_out_for_a_reason() -> None:
    judged = {row.id for row in rows() if row.set != "fresh"}
    out = {one["id"] for one in left_out()}
    assert not judged & out and len(judged) + len(out) == 137
    assert all(one["reason"] for one in left_out())


def test_the_page_shows_what_the_catalogue_says_now() -> None:
    table = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert table == render(rows()), "run python -m tests.stack.serve.report_table"
