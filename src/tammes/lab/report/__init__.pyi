from tammes.lab.report.contents import write_page as write_page
from tammes.lab.report.inspection import inspect as inspect
from tammes.lab.report.model_results import ModelResults as ModelResults
from tammes.lab.report.page import Section as Section
