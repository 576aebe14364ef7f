"""BLiMP: of two sentences that differ in one point of grammar, the good one should be the likelier."""

from __future__ import annotations

from collections.abc import Iterable

from statewise.errors import DataError
from statewise.evaluate.questions.question import QuestionTask, asked
from statewise.evaluate.questions.rows import Row

# Each of the 67 sets has 1,000 pairs. By field, as the data say it; principle_A_case_2's "syntax/semantics" is the
# "syntax_semantics" of the others.
FIELDS = {
    "morphology": """
        anaphor_gender_agreement anaphor_number_agreement determiner_noun_agreement_1 determiner_noun_agreement_2
        determiner_noun_agreement_irregular_1 determiner_noun_agreement_irregular_2
        determiner_noun_agreement_with_adj_2 determiner_noun_agreement_with_adj_irregular_1
        determiner_noun_agreement_with_adj_irregular_2 determiner_noun_agreement_with_adjective_1
        distractor_agreement_relational_noun distractor_agreement_relative_clause irregular_past_participle_adjectives
        irregular_past_participle_verbs irregular_plural_subject_verb_agreement_1
        irregular_plural_subject_verb_agreement_2 regular_plural_subject_verb_agreement_1
        regular_plural_subject_verb_agreement_2""",
    "semantics": """
        existential_there_quantifiers_1 existential_there_quantifiers_2 matrix_question_npi_licensor_present
        npi_present_1 npi_present_2 only_npi_licensor_present sentential_negation_npi_licensor_present
        superlative_quantifiers_1 superlative_quantifiers_2""",
    "syntax": """
        adjunct_island animate_subject_passive animate_subject_trans causative complex_NP_island
        coordinate_structure_constraint_complex_left_branch coordinate_structure_constraint_object_extraction
        drop_argument ellipsis_n_bar_1 ellipsis_n_bar_2 inchoative intransitive left_branch_island_echo_question
        left_branch_island_simple_question passive_1 passive_2 sentential_subject_island transitive wh_island
        wh_questions_object_gap wh_questions_subject_gap wh_questions_subject_gap_long_distance wh_vs_that_no_gap
        wh_vs_that_no_gap_long_distance wh_vs_that_with_gap wh_vs_that_with_gap_long_distance""",
    "syntax_semantics": """
        existential_there_object_raising existential_there_subject_raising expletive_it_object_raising only_npi_scope
        principle_A_c_command principle_A_case_1 principle_A_case_2 principle_A_domain_1 principle_A_domain_2
        principle_A_domain_3 principle_A_reconstruction sentential_negation_npi_scope tough_vs_raising_1
        tough_vs_raising_2""",
}
SETS = {name: field for field, names in FIELDS.items() for name in names.split()}


def blimp_task(name: str, rows: Iterable[Row], source: str) -> QuestionTask:
    """One of the sets, as "blimp_<set>": pairs of a good and a bad sentence, each a whole text. Chance is 50 %.

    Source:  Warstadt et al. 2020, "BLiMP", arXiv:1912.00582; as lm-eval's blimp_<set>.
    Errors:  DataError, with the place, for a row without its two sentences.
    """
    questions = [asked(row.values, "", (_sentence(row, "good"), _sentence(row, "bad")), 0) for row in rows]
    return QuestionTask(name=f"blimp_{name}", questions=questions, examples=None, official=True, source=source)


def _sentence(row: Row, which: str) -> str:
    sentence = row.text(f"sentence_{which}")
    if not sentence.strip():
        raise DataError(f'{row.place}: "sentence_{which}" is empty; give a sentence')
    return sentence
